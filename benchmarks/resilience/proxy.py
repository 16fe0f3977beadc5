"""A proxy in front of a server, which makes requests fail."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Fault = Literal["none", "drop", "status 500"]


class Proxy:
    """Passes requests on, except those for which ``choose_fault`` returns a fault.

    Args:
        port: The port to listen on.
        server: The port of the server.

    Attributes:
        choose_fault: Given the method and path of a request, returns ``none`` to pass it on, ``drop`` to close the
            connection without an answer, or ``status 500`` to answer so. It is called in the thread of the request, and
            may wait.
        failed: Number of requests that failed.
        passed: Number of requests that were passed on.
    """

    def __init__(self, port: int, server: int) -> None:
        self.uri = f"http://127.0.0.1:{port}"
        self.choose_fault: Callable[[str, str], Fault] = lambda *_: "none"
        self.failed = self.passed = 0
        self._listener = ThreadingHTTPServer(("127.0.0.1", port), _handler(self, server))
        self._listener.daemon_threads = True
        threading.Thread(target=self._listener.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown()
        self._listener.server_close()


def _handler(proxy: Proxy, server: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            body = self.read_body()
            fault = proxy.choose_fault(self.command, self.path)
            if fault != "none":
                proxy.failed += 1
                self.close_connection = True
                if fault == "status 500":
                    self.send_error(500)
                return
            proxy.passed += 1
            connection = http.client.HTTPConnection("127.0.0.1", server)
            own = ("host", "content-length", "transfer-encoding", "connection")
            headers = {name: value for name, value in self.headers.items() if name.lower() not in own}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            connection.close()

        def read_body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):  # any method
                return self.pass_on
            raise AttributeError(name)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return Handler
