"""The process of the model. In the server's own process it would compete with requests for Python's interpreter lock.

Both ends of the pipe are here. The server sends a function that loads the model, and receives the model's
description; then it sends the name of a method with its arguments, and receives the result. Exceptions are raised here.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any

from dstransformer.errors import DstError
from dstransformer.io.command import prepare_streams

if TYPE_CHECKING:  # importing them takes time, in which the process can already start
    from dstransformer.extras.serving.model import Batch, Candidates, Model, ModelInfo

#: Signals that reach both processes, as from Ctrl-C. Only the server handles them.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

#: Maximum seconds between the end of the pipe and that of the process.
_EXIT_TIMEOUT = 10.0

_MAIN = "from dstransformer.extras.serving.model_process import run_model; run_model({descriptor}, {parent})"


class ModelEndedError(DstError):
    """The process of the model has ended, and with it every translation under way."""


class ModelProcess:
    """A model in a separate process; see :class:`dstransformer.extras.serving.model.Model`.

    The process ends when this one ends, even if it is killed.

    Args:
        load: Loads the model; called in the process.

    Attributes:
        info: The description of the model, once it is loaded.
        pid: The id of the process.
    """

    info: ModelInfo

    def __init__(self, load: Callable[[], Model]) -> None:
        self._connection, child_end = Pipe()
        main = _MAIN.format(descriptor=child_end.fileno(), parent=os.getpid())
        with child_end, _blocked(_STOP_SIGNALS):  # the process inherits the blocked signals
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", main],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
                pass_fds=[child_end.fileno()],
            )
        self.pid = self._process.pid
        with suppress(OSError):  # it has ended: wait() says why
            self._connection.send(load)

    def wait(self) -> None:
        """Wait until the model is loaded.

        Raises:
            Exception: What ``load`` raises.
            ModelEndedError: The process has ended.
        """
        self.info = self._receive()

    @property
    def ended(self) -> str | None:
        """Why the process has ended; None if it has not."""
        status = self._process.poll()
        if status is None:
            return None
        if status >= 0:
            return f"the process of the model ended with exit status {status}"
        hint = " (did memory run out?)" if -status == signal.SIGKILL else ""
        return f"the process of the model was ended by {signal.Signals(-status).name}{hint}"

    def search(self, batch: Batch) -> list[Candidates]:
        """See :meth:`dstransformer.extras.serving.model.Model.search`."""
        found: list[Candidates] = self._call("search", batch)
        return found

    def attention(self, source: str, target: str) -> dict[str, Any]:
        """See :meth:`dstransformer.extras.serving.model.Model.attention`."""
        weights: dict[str, Any] = self._call("attention", source, target)
        return weights

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()

    def _call(self, *call: Any) -> Any:
        with suppress(OSError):  # it has ended
            self._connection.send(call)
        return self._receive()

    def _receive(self) -> Any:
        try:
            result = self._connection.recv()
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_TIMEOUT)
            raise ModelEndedError(self.ended or "the process of the model has closed its pipe") from None
        if isinstance(result, Exception):
            raise result
        return result


@contextmanager
def _blocked(signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_model(descriptor: int, parent: int) -> None:
    """The main function of the process: load the model and run calls until the pipe is closed.

    Args:
        descriptor: The end of the pipe.
        parent: The process that started it.
    """
    if sys.platform == "linux":  # end with the parent, also in the middle of a search (prctl(2), PR_SET_PDEATHSIG)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        return
    os.set_inheritable(descriptor, False)
    prepare_streams()
    logging.basicConfig(level=logging.WARNING, format="dst: %(message)s", stream=sys.stderr)
    with Connection(descriptor) as connection, suppress(EOFError, ConnectionError):
        model = _attempt(connection.recv())
        if isinstance(model, Exception):
            connection.send(model)
            return
        connection.send(model.info)
        while True:
            name, *arguments = connection.recv()
            connection.send(_attempt(getattr(model, name), *arguments))


def _attempt(call: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call, or its exception as one that can be pickled, with the traceback as a note."""
    try:
        return call(*arguments)
    except Exception as error:
        known = isinstance(error, DstError | MemoryError | OSError)
        portable = error if known else RuntimeError(f"{type(error).__name__}: {error}")
        portable.add_note(traceback.format_exc())
        return portable
