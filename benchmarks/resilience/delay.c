/* Preloaded: each message that a process sends over a socket waits first, as if the network had that latency. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static void delay(int file) {
    int domain;
    socklen_t size = sizeof domain;
    const char *microseconds = getenv("DELAY_US");
    if (microseconds && !getsockopt(file, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain != AF_UNIX)
        usleep(atoi(microseconds));
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    ssize_t (*next)(int, const struct iovec *, int) = dlsym(RTLD_NEXT, "writev");
    delay(file);
    return next(file, parts, count);
}
