"""The machine, and how much of it other processes use."""

from __future__ import annotations

import datetime
import os
import resource
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from dstransformer.model.ops import kernels_fingerprint, processor_name

ROOT = Path(__file__).parents[2]


def count_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe() -> str:
    """CPU, cores, memory and the version of PyTorch."""
    memory = psutil.virtual_memory().total / 2**30
    cores = f"{count_cores()} cores, {torch.get_num_threads()} threads"
    kernels = kernels_fingerprint()
    return f"{processor_name()}, {cores}, {memory:.0f} GiB, torch {torch.__version__}, CPU kernels: {kernels}"


def format_header(machine: str, command: str) -> str:
    """What a page of results states first: date, commit, machine and command."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    found = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    today = datetime.date.today().isoformat()
    return f"{today}, commit {found or 'unknown'}, {machine}\npython -m benchmarks {command}"


@dataclass
class Others:
    """The share of the machine, from 0 to 1, that other processes took; known after the ``with`` block."""

    share: float = 0.0


@contextmanager
def watch_others(living: Sequence[int] = ()) -> Iterator[Others]:
    """Measure the load of other processes during a block.

    Args:
        living: PIDs of processes of ours that run before, during and after the block. Child processes that start and
            end in the block are counted as ours without being named.
    """
    others = Others()
    began, busy, own = time.perf_counter(), _busy_seconds(), _own_seconds(living)
    yield others
    wall = (time.perf_counter() - began) * (os.cpu_count() or 1)
    others.share = max(0.0, _busy_seconds() - busy - (_own_seconds(living) - own)) / wall


def child_seconds() -> float:
    """CPU seconds of the child processes that have ended, and of their children."""
    times = os.times()
    return times.children_user + times.children_system


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _own_seconds(living: Sequence[int]) -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    times = [psutil.Process(number).cpu_times() for number in living]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + sum(time.user + time.system for time in times)
