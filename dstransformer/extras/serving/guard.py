"""Checks every request before the application sees it, and adds headers to every answer.

A page of another site must not use a server on this machine through the visitor's browser. Three checks keep it out:
the ``Host`` must be an address or a configured name (DNS rebinding needs a name of the attacker), an
``Origin`` must be the server's own, and a body must be ``application/json``, which a foreign page can only send after a
preflight request that this server never answers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import Collection, Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dstransformer.errors import shown
from dstransformer.extras.serving.metrics import ServerMetrics
from dstransformer.extras.serving.model import Limits

#: Headers of every answer. The page adds its own Content-Security-Policy.
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}

#: Names of this machine that an attacker cannot redirect.
LOCAL_NAMES = ("localhost",)

#: The content type of a form. A page sends one without a preflight request; its origin is checked all the same.
FORM = "application/x-www-form-urlencoded"

#: The origin of an extension of a browser, which no page can pretend to.
_EXTENSION = re.compile(r"(chrome|moz|safari-web)-extension://")

#: nginx's status for a client that disconnected before the answer. It is only counted.
CLIENT_CLOSED_REQUEST = 499


class RefusedError(HTTPException):
    """An answer other than success.

    Args:
        status: The HTTP status.
        reason: One line: what is wrong and what to do.
        retry_after: Seconds, for the header of this name.
    """

    def __init__(self, status: int, reason: str, retry_after: int | None = None) -> None:
        super().__init__(status, reason, None if retry_after is None else {"retry-after": str(retry_after)})

    def response(self, key: str = "detail") -> JSONResponse:
        """The answer, with the reason under ``key``."""
        return JSONResponse({key: self.detail}, self.status_code, self.headers)


class Guard:
    """ASGI middleware: checks each request, limits its body, adds :data:`HEADERS`, counts the answers.

    Args:
        app: The application. It answers a :class:`RefusedError` that ``receive`` raises.
        limits: ``request_bytes`` and ``timeout`` are used here.
        hosts: Names by which the server may be called, besides addresses and :data:`LOCAL_NAMES`; ``*`` allows all.
        metrics: Counts the answers.
        paths: Paths with their own counters; others are counted together.
        is_libretranslate: Whether forms and extensions of browsers may ask too, and an error has the key ``error``.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        hosts: Collection[str],
        metrics: ServerMetrics,
        paths: Collection[str],
        is_libretranslate: bool = False,
    ) -> None:
        self.app = app
        self._limits = limits
        self._hosts = frozenset(host.lower().rstrip(".") for host in (*hosts, *LOCAL_NAMES))
        self._metrics = metrics
        self._paths = frozenset(paths)
        self._is_libretranslate = is_libretranslate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        began, status = time.monotonic(), CLIENT_CLOSED_REQUEST

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check(scope["method"], Headers(scope=scope))
            await self.app(scope, self._limit(receive), answer)
        except RefusedError as refusal:
            await refusal.response("error" if self._is_libretranslate else "detail")(scope, receive, answer)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.count_request(path, status, time.monotonic() - began)

    def _check(self, method: str, headers: Headers) -> None:
        """Refuse a request by where it comes from; see the module."""
        host = headers.get("host", "").lower()
        if host and not is_allowed_host(host, self._hosts):
            raise RefusedError(
                403, f"this server is not called {shown(host)}: start it with --allow-host NAME to allow the name"
            )
        if method in ("GET", "HEAD", "OPTIONS"):
            return
        origin = headers.get("origin")
        is_extension = self._is_libretranslate and origin is not None and _EXTENSION.match(origin)
        if origin is not None and not is_own_origin(origin, host) and not is_extension:
            raise RefusedError(403, "requests from pages of other sites are not allowed")
        kind = content_type(headers)
        if kind != "application/json" and not (self._is_libretranslate and kind == FORM):
            raise RefusedError(415, f"the content type is {shown(kind)}: send application/json")

    def _limit(self, receive: Receive) -> Receive:
        """The channel of a request, which raises a :class:`RefusedError` if its body is too large or too slow."""
        timeout, max_bytes = self._limits.timeout, self._limits.request_bytes
        deadline: float | None = asyncio.get_running_loop().time() + timeout
        size = 0

        async def limited() -> Message:
            nonlocal deadline, size
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise RefusedError(408, f"the request did not arrive within {timeout:g} s") from None
            if message["type"] == "http.disconnect" and deadline is not None:
                raise RefusedError(CLIENT_CLOSED_REQUEST, "the client closed the connection")
            size += len(message.get("body", b""))
            if size > max_bytes:
                raise RefusedError(
                    413, f"the request is larger than {max_bytes:,} bytes: send fewer sentences in one request"
                )
            if not message.get("more_body", False):
                deadline = None  # the body is complete: what follows is the end of the connection
            return message

        return limited


def content_type(headers: Headers) -> str:
    """The type of a body, without parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


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
