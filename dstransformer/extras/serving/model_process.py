"""The process of the model. In the server's own process it would compete with requests for Python's interpreter lock.

It is the one process of a pool, in which a function loads the model and calls reach it by the names of its methods.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dstransformer.errors import DstError
from dstransformer.io.command import prepare_streams

if TYPE_CHECKING:  # importing them takes time, in which the process can already start
    from dstransformer.extras.serving.model import Batch, Candidates, Model, ModelInfo
    from dstransformer.extras.serving.schema import AttentionAnswer

#: Signals that reach both processes, as from Ctrl-C. Only the server handles them.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
        others = set(multiprocessing.active_children())
        context = multiprocessing.get_context("spawn")
        self._lock = threading.Lock()
        self._pool = ProcessPoolExecutor(1, context, initializer=_prepare)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)  # the process inherits the blocked signals
        try:
            self._loading = self._pool.submit(_load, load)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        (self._process,) = set(multiprocessing.active_children()) - others
        self.pid = self._process.pid or 0

    def wait(self) -> None:
        """Wait until the model is loaded.

        Raises:
            Exception: What ``load`` raises.
            ModelEndedError: The process has ended.
        """
        with self._named_end():
            self.info = self._loading.result()

    @property
    def ended(self) -> str | None:
        """Why the process has ended; None if it has not."""
        with self._lock:
            status = self._process.exitcode
        if status is None:
            return None
        if status >= 0:
            return f"the process of the model ended with exit status {status}"
        hint = " (did memory run out?)" if -status == signal.SIGKILL else ""
        return f"the process of the model was ended by {signal.Signals(-status).name}{hint}"

    def search(self, batch: Batch) -> list[Candidates]:
        """See :meth:`dstransformer.extras.serving.model.Model.search`."""
        lists: list[Candidates] = self._call("search", batch)
        return lists

    def attention(self, source: str, target: str) -> AttentionAnswer:
        """See :meth:`dstransformer.extras.serving.model.Model.attention`."""
        answer: AttentionAnswer = self._call("attention", source, target)
        return answer

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        with self._lock:  # the thread that waits for an answer may do the same
            self._pool.shutdown()

    def _call(self, name: str, *arguments: Any) -> Any:
        with self._named_end():
            return self._pool.submit(_call, name, arguments).result()

    @contextmanager
    def _named_end(self) -> Iterator[None]:
        """Raise a :class:`ModelEndedError` if the process ends in the block."""
        try:
            yield
        except BrokenProcessPool:
            with self._lock:
                self._pool.shutdown()  # which takes the exit status of the process; two at a time would lose it
            raise ModelEndedError(self.ended or "the process of the model has ended") from None


#: The model, in its process.
_model: Model


def _prepare() -> None:
    """Prepare the process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare_streams()
    logging.basicConfig(level=logging.WARNING, format="dst: %(message)s", stream=sys.stderr)


def _end_with_parent() -> None:
    """End this process when its parent ends, also in the middle of a search."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _load(load: Callable[[], Model]) -> ModelInfo:
    global _model  # noqa: PLW0603 (the pool keeps nothing between calls)
    with _portable_errors():
        _model = load()
        return _model.info


def _call(name: str, arguments: tuple[Any, ...]) -> Any:
    with _portable_errors():
        return getattr(_model, name)(*arguments)


@contextmanager
def _portable_errors() -> Iterator[None]:
    """Turn an error that the server may not be able to unpickle into one that it can."""
    try:
        yield
    except (DstError, MemoryError, OSError):
        raise
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
