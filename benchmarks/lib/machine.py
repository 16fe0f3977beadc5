"""The machine, and whether others use it meanwhile."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import psutil
import torch

from dstransformer.distributed.world import usable_cores
from dstransformer.model.ops import kernels_name, processor_name

#: The share of the machine that others may take before a measurement counts as disturbed.
DISTURBED = 0.05

#: A measurement that other processes disturbed is made again, this often in all; the least disturbed one counts.
ATTEMPTS = 3

T = TypeVar("T")


def describe() -> str:
    """CPU, cores, memory and the PyTorch that all systems use."""
    memory = psutil.virtual_memory().total / 2**30
    cores = f"{len(usable_cores())} cores, {torch.get_num_threads()} threads"
    return f"{processor_name()}, {cores}, {memory:.0f} GiB, torch {torch.__version__}, CPU kernels: {kernels_name()}"


def wait_for_quiet(patience: float) -> None:
    """Wait until other processes leave the machine alone for two seconds, ``patience`` seconds at most."""
    end = time.monotonic() + patience
    while psutil.cpu_percent(interval=2) > 100 * DISTURBED and time.monotonic() < end:
        pass


@dataclass
class Others:
    """How much of the machine processes that are not ours took, from 0 to 1; known after the ``with`` block."""

    share: float = 0.0


@contextmanager
def watch_others(living: Sequence[int] = ()) -> Iterator[Others]:
    """Around work of ours: in child processes, from their start until they have been waited for, or in living ones."""
    others = Others()
    began, busy, own = time.perf_counter(), _busy_seconds(), _own_seconds(living)
    yield others
    wall = (time.perf_counter() - began) * (os.cpu_count() or 1)
    others.share = max(0.0, _busy_seconds() - busy - (_own_seconds(living) - own)) / wall


def measure_undisturbed(measure: Callable[[], tuple[T, float]], patience: float) -> tuple[T, float]:
    """Measure in quiet, and again where others disturbed it after all.

    Args:
        measure: Returns what it found, and the share of the machine that others took meanwhile.
        patience: Seconds to wait for a quiet machine, each time.
    """
    found = []
    for _ in range(ATTEMPTS):
        wait_for_quiet(patience)
        found.append(measure())
        if found[-1][1] <= DISTURBED:
            break
    return min(found, key=lambda pair: pair[1])


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _own_seconds(living: Sequence[int]) -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    times = [psutil.Process(number).cpu_times() for number in living]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + sum(time.user + time.system for time in times)
