"""Checks every request before the application sees it, and adds headers to every answer.

A page of another site must not use a server on this machine through the visitor's browser. Three checks keep it out:
the ``Host`` must be an address or a configured name (DNS rebinding needs a name of the attacker), an
``Origin`` must be the server's own, and a body must be ``application/json``, which a foreign page can only send after a
preflight request that this server never answers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import time
from collections.abc import Collection, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dstransformer.errors import shown
from dstransformer.extras.serving.limits import Limits
from dstransformer.extras.serving.metrics import ServerMetrics

#: Headers of every answer. The page adds its own Content-Security-Policy.
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
}

#: Names of this machine that an attacker cannot redirect.
LOCAL_NAMES = ("localhost",)

#: nginx's status for a client that disconnected before the answer. It is only counted.
CLIENT_CLOSED_REQUEST = 499


class RefusedError(Exception):
    """An answer other than success.

    Args:
        status: The HTTP status.
        reason: One line: what is wrong and what to do.
        retry_after: Seconds, for the header of this name.
    """

    def __init__(self, status: int, reason: str, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after

    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}


class Guard:
    """ASGI middleware: checks and reads each request, adds :data:`HEADERS`, counts the answers.

    Args:
        app: The application.
        limits: ``request_bytes`` and ``timeout`` are used here.
        hosts: Names by which the server may be called, besides addresses and :data:`LOCAL_NAMES`; ``*`` allows all.
        metrics: Counts the answers.
        paths: Paths with their own counters; others are counted together.
    """

    def __init__(
        self, app: ASGIApp, *, limits: Limits, hosts: Collection[str], metrics: ServerMetrics, paths: Collection[str]
    ) -> None:
        self._app = app
        self._limits = limits
        self._hosts = frozenset(host.lower().rstrip(".") for host in (*hosts, *LOCAL_NAMES))
        self._metrics = metrics
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, statuses = time.monotonic(), [CLIENT_CLOSED_REQUEST]

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses[:] = [message["status"]]
                given = {name.lower() for name, _ in message["headers"]}
                added = [(name, value) for name, value in HEADERS.items() if name not in given]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            await self._app(scope, await self._admit(scope, receive), answer)
        except RefusedError as refusal:
            await _send(answer, refusal)
        except _DisconnectedError:
            pass
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.count_request(path, statuses[-1], time.monotonic() - began)

    async def _admit(self, scope: Scope, receive: Receive) -> Receive:
        """Check a request and read its body; returns a channel that replays it.

        Raises:
            RefusedError: The request is not allowed, too large or too slow.
        """
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if host and not is_allowed_host(host, self._hosts):
            raise RefusedError(
                403, f"this server is not called {shown(host)}: start it with --allow-host NAME to allow the name"
            )
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return receive
        origin = headers.get(b"origin")
        if origin is not None and not is_own_origin(origin.decode("latin-1"), host):
            raise RefusedError(403, "requests from pages of other sites are not allowed")
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            raise RefusedError(415, f"the content type is {shown(kind.decode('latin-1'))}: send application/json")
        return _replaying(await self._read(headers, receive), receive)

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        max_bytes = self._limits.request_bytes
        too_large = RefusedError(
            413, f"the request is larger than {max_bytes:,} bytes: send fewer sentences in one request"
        )
        stated = headers.get(b"content-length", b"")
        if stated.isdigit() and int(stated[:20]) > max_bytes:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _DisconnectedError
                    body += message.get("body", b"")
                    if len(body) > max_bytes:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise RefusedError(408, f"the request did not arrive within {self._limits.timeout:g} s") from None


class _DisconnectedError(Exception):
    """The client closed the connection before its request was complete."""


def is_allowed_host(host: str, names: Iterable[str]) -> bool:
    """Whether a ``Host`` header, in lower case, is an address or one of these names, with any port."""
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdigit():
        name = host
    name = name.removeprefix("[").removesuffix("]").rstrip(".")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in names or "*" in names
    return True


def is_own_origin(origin: str, host: str) -> bool:
    """Whether an ``Origin`` header names the server that the ``Host`` header names, in lower case, by any scheme."""
    scheme, separator, authority = origin.lower().partition("://")
    return bool(separator) and scheme in ("http", "https") and authority == host


def _replaying(body: bytes, receive: Receive) -> Receive:
    """A channel that returns the body, and then what ``receive`` returns: the end of the connection."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


async def _send(send: Send, refusal: RefusedError) -> None:
    body = json.dumps({"detail": refusal.reason}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers()}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
