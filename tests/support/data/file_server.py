"""A server of files in a folder, which also answers as a proxy."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; what a path begins with decides how it misbehaves."""

    requests: list[str]

    def do_GET(self) -> None:
        self.path = self.path.removeprefix("http://corpora.invalid")  # asked for as of a proxy
        self.server.requests.append(self.path)  # type: ignore[attr-defined]
        path = self.path.partition("?")[0]
        if path.startswith("/cut/"):
            self._send(self._content(path), stated=True, most=100)
        elif path.startswith("/unstated/"):
            self._send(self._content(path), stated=False)
        elif path.startswith("/refused/"):
            self.send_error(403)
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        self.path = self.path.removeprefix("http://corpora.invalid")
        if self.path.startswith(("/cut/", "/unstated/", "/refused/")):
            self.send_error(405)
        else:
            super().do_HEAD()

    def _content(self, path: str) -> bytes:
        return (Path(self.directory) / Path(path).name).read_bytes()

    def _send(self, content: bytes, *, stated: bool, most: int | None = None) -> None:
        self.send_response(200)
        if stated:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:most])

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    requests: list[str]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def file_server(folder: Path) -> Iterator[Server]:
    """Serve a folder. What was asked for is in ``requests``."""
    with Server(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as running:
        running.requests = []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()
