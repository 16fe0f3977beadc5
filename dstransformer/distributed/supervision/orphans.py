"""Stops a run whose launcher was killed: nobody would end its processes, and nothing else could train in its folder."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import psutil

logger = logging.getLogger(__name__)

#: Seconds between two looks.
INTERVAL = 1.0

#: By a variable that only this launcher sets: how many processes above a rank belong to it. Above a rank of
#: ``deepspeed`` are the process that starts the ranks of a node and the one that was called, or its ssh connection.
_GENERATIONS = {"TORCHELASTIC_RUN_ID": 1, "CROSS_RANK": 2}


def launchers(environment: Mapping[str, str]) -> list[int]:
    """The processes of the launcher above this one, the nearest first; none without a launcher that dies alone."""
    generations = next((count for name, count in _GENERATIONS.items() if name in environment), 0)
    found: list[int] = []
    process = psutil.Process()
    for _ in range(generations):
        parent = process.parent()
        if parent is None or parent.pid == 1:
            break
        found.append(parent.pid)
        process = parent
    return found


@contextmanager
def stopping_with_launcher(
    environment: Mapping[str, str], is_stopping: Callable[[], bool], interval: float = INTERVAL
) -> Iterator[None]:
    """In the block, send this process SIGTERM once a process of its launcher is gone. The run then stops as asked to.

    Args:
        environment: The environment variables, which say what the launcher was.
        is_stopping: Whether the run has been asked to stop. Then nothing is sent: another request would be urgent.
        interval: Seconds between two looks.
    """
    above = launchers(environment)
    ended = threading.Event()
    if above:
        threading.Thread(
            target=watch, args=(above, is_stopping, ended, interval), name="launcher watch", daemon=True
        ).start()
    try:
        yield
    finally:
        ended.set()


def watch(above: list[int], is_stopping: Callable[[], bool], ended: threading.Event, interval: float) -> None:
    """Send this process SIGTERM once it has other processes above it than these; see :func:`stopping_with_launcher`."""
    while not ended.wait(interval) and not is_stopping():
        if _chain(len(above)) != above:
            logger.warning("the launcher (process %s) was killed: the run stops", " or ".join(map(str, above)))
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _chain(length: int) -> list[int]:
    """The processes above this one, the nearest first; fewer if one is gone. An orphan has another parent."""
    found = [os.getppid()]
    try:
        while len(found) < length:
            found.append(psutil.Process(found[-1]).ppid())
    except psutil.Error:
        pass
    return found
