"""Starts the HTTP server and stops it."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import threading
import time
from collections.abc import Collection
from contextlib import closing

import uvicorn

from dstransformer.errors import DstError, StorageError, UserError, counted, shown
from dstransformer.extras.serving.app import build_app
from dstransformer.extras.serving.libretranslate import build_libretranslate
from dstransformer.extras.serving.model import Limits, fit_to_model
from dstransformer.extras.serving.model_process import ModelProcess
from dstransformer.extras.serving.service import Service
from dstransformer.io.progress import note

#: The interfaces, and what builds the application of each.
APIS = {"dstransformer": build_app, "libretranslate": build_libretranslate}

#: Seconds for answers being sent and requests still arriving when the server stops.
_SHUTDOWN_TIMEOUT = 2

#: Connections that the system holds until they are accepted.
_BACKLOG = 1024

#: Seconds between two looks at the model and the signals.
_TICK = 0.1


def serve(
    model: ModelProcess,
    limits: Limits,
    *,
    host: str,
    port: int,
    hosts: Collection[str] = (),
    access_log: bool = False,
    api: str = "dstransformer",
) -> None:
    """Serve until SIGTERM or SIGINT, then finish accepted requests. The model may still be loading.

    Port 0 is any that is free; by ``hosts`` the server may be called, besides ``host``; ``api`` is one of :data:`APIS`.

    Raises:
        UserError: The host or the port cannot be used, or the interface needs a package that is not installed.
        DataError: The interface needs to know the languages, and the model does not.
        DstError: The model cannot be loaded, accepted requests were not finished in time, or the process of the model
            has ended.
    """
    with closing(_listen(host, port)) as listener:
        model.wait()
        info = model.info
        service = Service(model, fit_to_model(limits, info))
        service.metrics.watch_process(model.pid)
        config = uvicorn.Config(
            APIS[api](service, (host, *hosts)),
            loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, access_log=access_log,
            proxy_headers=False, server_header=False, backlog=_BACKLOG, timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT,
        )  # fmt: skip
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
        address, own_port = listener.getsockname()[:2]
        place = f"[{address}]" if ":" in address else address
        note(
            f"dst: serving {info.path} at http://{place}:{own_port} (beam {service.beam_size}, "
            f"{info.decoding['device']}, {info.decoding['precision']}); Ctrl-C ends"
        )  # fmt: skip
        failure, lost = _run(uvicorn.Server(config), listener, service)
    if failure is not None:
        raise DstError(f"{failure}; its requests got status 503: start the server again")
    if lost:
        raise DstError(f"{counted(lost, 'request')} not answered within {limits.stop:g} s (--stop-timeout)")
    note("dst: stopped; every accepted request was answered")


def _run(server: uvicorn.Server, listener: socket.socket, service: Service) -> tuple[str | None, int]:
    """Serve in another thread, while this one waits for the first signal; then finish what was accepted.

    Meanwhile the server answers 503 to new requests. A second signal ends it at once.

    Returns:
        Why it ended without a signal, None if by one; and the number of requests that were abandoned.
    """
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="http", daemon=True)
    thread.start()

    def failed() -> str | None:
        return service.failure if thread.is_alive() else "the HTTP server has ended"

    deadline = float("inf")
    while (failure := failed()) is None and len(signals) < 2 and time.monotonic() < deadline:
        if signals and not service.stopping:
            service.stop()
            deadline = time.monotonic() + service.limits.stop
            if left := service.batcher.unfinished:
                what = f"{signal.Signals(signals[0]).name}: finishing {counted(left, 'request')}; again ends at once"
                note(f"dst: {what}")
        if service.stopping and not service.batcher.unfinished:
            break
        time.sleep(_TICK)
    lost = service.give_up()
    server.should_exit = True
    thread.join()
    return failure, lost


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens on an address.

    Raises:
        UserError: The host does not exist, or the port is in use or forbidden.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a name"
        raise UserError(f"--host {shown(host)}: {reason}; give an address of this machine, or 127.0.0.1") from None
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        advice = {
            errno.EADDRINUSE: f"port {port} of {host} is in use: stop what uses it, or give another --port",
            errno.EACCES: f"port {port} needs more rights: give a --port from 1024 on",
            errno.EADDRNOTAVAIL: f"--host {shown(host)} is not an address of this machine: give 127.0.0.1 or 0.0.0.0",
        }
        text = advice.get(error.errno or 0)
        raise (UserError(text) if text else StorageError(f"cannot listen on {host}:{port}: {error.strerror}")) from None
