"""Starts the HTTP server and stops it."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import sys
import time
from collections.abc import Collection
from contextlib import closing
from types import FrameType

import uvicorn

from dstransformer.errors import DstError, StorageError, UserError, counted, shown
from dstransformer.extras.serving.app import build_app
from dstransformer.extras.serving.limits import Limits, fit_to_model
from dstransformer.extras.serving.model_process import ModelProcess
from dstransformer.extras.serving.service import Service

#: Seconds for answers being sent and requests still arriving when the server stops.
_SHUTDOWN_TIMEOUT = 2

#: Connections that the system holds until they are accepted.
_BACKLOG = 1024


def serve(
    model: ModelProcess,
    limits: Limits,
    *,
    host: str,
    port: int,
    hosts: Collection[str] = (),
    access_log: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT, then finish accepted requests.

    Args:
        model: The model, which may still be loading.
        limits: The limits.
        host: Address or name to listen on.
        port: The port; 0 for any that is free.
        hosts: Names by which the server may be called, besides ``host``.
        access_log: Log every request.

    Raises:
        UserError: The host or the port cannot be used.
        DstError: The model cannot be loaded, accepted requests were not finished in time, or the process of the model
            has ended.
    """
    with closing(bind(host, port)) as listener:
        model.wait()
        info = model.info
        service = Service(model, fit_to_model(limits, info))
        service.metrics.watch_process(model.pid)
        app = build_app(service, (host, *hosts))
        config = uvicorn.Config(
            app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, access_log=access_log,
            proxy_headers=False, server_header=False, backlog=_BACKLOG, timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT,
        )  # fmt: skip
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
        print(
            f"dst: serving {info.path} at {_address(listener)} (beam {service.beam_size}, "
            f"{info.decoding['device']}, {info.decoding['precision']}); Ctrl-C ends",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        server = _Server(config, service)
        server.run(sockets=[listener])
    if server.failure is not None:
        raise DstError(f"{server.failure}; its requests got status 503: start the server again")
    if server.lost:
        raise DstError(f"{counted(server.lost, 'request')} not answered within {limits.stop:g} s (--stop-timeout)")
    print("dst: stopped; every accepted request was answered", file=sys.stderr, flush=True)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to an address, which does not listen yet.

    Raises:
        UserError: The host does not exist, or the port is in use or forbidden.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a name"
        raise UserError(f"--host {shown(host)}: {reason}; give an address of this machine, or 127.0.0.1") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        advice = {
            errno.EADDRINUSE: f"port {port} of {host} is in use: stop what uses it, or give another --port",
            errno.EACCES: f"port {port} needs more rights: give a --port from 1024 on",
            errno.EADDRNOTAVAIL: f"--host {shown(host)} is not an address of this machine: give 127.0.0.1 or 0.0.0.0",
        }
        text = advice.get(error.errno or 0)
        raise (UserError(text) if text else StorageError(f"cannot listen on {host}:{port}: {error.strerror}")) from None
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Uvicorn that finishes accepted requests before it stops listening, and meanwhile answers 503 to new ones.

    Attributes:
        lost: Number of requests that were abandoned, once it has stopped.
        failure: Why it stopped without a signal; None if a signal stopped it.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.lost = 0
        self.failure: str | None = None
        self._service = service
        self._deadline = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop at the first signal, and stop at once at the second."""
        del frame
        if self._service.stopping:
            self._deadline = 0.0
            return
        self._deadline = time.monotonic() + self._service.limits.stop
        self._service.stop()
        if left := self._service.batcher.unfinished:
            name = signal.Signals(sig).name
            print(f"dst: {name}: finishing {counted(left, 'request')}; again ends at once", file=sys.stderr, flush=True)

    async def on_tick(self, counter: int) -> bool:
        """Whether to leave the main loop; called every tenth of a second."""
        self.failure = self._service.failure
        if self.failure is None:
            if not self._service.stopping:
                return await super().on_tick(counter)
            if self._service.batcher.unfinished and time.monotonic() < self._deadline:
                return False
        self.lost = self._service.give_up()
        return True
