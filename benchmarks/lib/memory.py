"""Peak memory of this process during a block, and of a process with all its descendants."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass
class Peak:
    """Peak memory in bytes, relative to the start of the block."""

    bytes: int = 0


@contextmanager
def own_data_peak(interval: float = 0.01) -> Iterator[Peak]:
    """Sample the memory of this process without its mapped files, relative to the start of the block.

    Mapped files lie in the page cache, which all processes share and the kernel can take back.
    """
    before, peak, done = _status("RssAnon"), Peak(), threading.Event()

    def sample() -> None:
        while not done.wait(interval):
            peak.bytes = max(peak.bytes, _status("RssAnon") - before)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield peak
    finally:
        done.set()
        sampler.join()


def tree_peak(process: psutil.Popen, interval: float = 0.1) -> tuple[int, int]:
    """Wait for a process, and measure its peak memory including its descendants.

    Returns:
        Proportional set size (shared pages count once) and resident set size (they count in every process), in bytes.
    """
    pss = rss = 0
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            sizes = [_size(member) for member in (process, *process.children(recursive=True))]
            pss, rss = max(pss, sum(size[0] for size in sizes)), max(rss, sum(size[1] for size in sizes))
        time.sleep(interval)
    return pss, rss


def _size(process: psutil.Process) -> tuple[int, int]:
    try:
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
        )
        return _bytes(fields["Pss"]), _bytes(fields["Rss"])
    except (OSError, KeyError):  # the process has ended
        return 0, 0


def _status(name: str) -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return _bytes(fields[name])


def _bytes(text: str) -> int:
    return 1024 * int(text.split(maxsplit=1)[0])
