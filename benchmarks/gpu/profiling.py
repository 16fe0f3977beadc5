"""Profiles: where the device spends its time, and how often the host waits for it."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.lib.limits import synchronize

#: Number of rows kept of a profile.
TOP = 15

#: Calls of the CUDA runtime in which the host waits for the device.
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")


@dataclass(frozen=True)
class Row:
    """A kernel (on a CPU, an operator): calls and milliseconds per repetition, and its share of the total time."""

    name: str
    calls: float
    milliseconds: float
    share: float


@dataclass(frozen=True)
class Profile:
    """A profile, per repetition of the work.

    Attributes:
        busy_milliseconds: Total time of all kernels. For the rest of the measured time the device was idle.
        kernels: Number of kernels and copies.
        waits: How often the host waited for the device, including after the last repetition.
        rows: The kernels with the longest total times, longest first.
    """

    busy_milliseconds: float
    kernels: float
    waits: float
    rows: list[Row]


def make_profile(work: Callable[[], Any], repetitions: int, device: torch.device, trace: Path | None) -> Profile:
    """Profile repetitions of work that is already warmed up.

    Args:
        work: The work to profile.
        repetitions: Number of repetitions; the profile is per repetition.
        device: The device it runs on.
        trace: Path without suffix for the operator table and the trace for chrome://tracing, or None.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as recorded:
        for _ in range(repetitions):
            work()
        synchronize(device)
    events = recorded.key_averages()
    if trace is not None:
        _write_trace(recorded, events, device, trace)
    return _summarise(list(events), repetitions, device)


def _summarise(events: Iterable[Any], repetitions: int, device: torch.device) -> Profile:
    on_device = device.type == "cuda"
    kind = "CUDA" if on_device else "CPU"
    own_time = "self_device_time_total" if on_device else "self_cpu_time_total"
    spent = [(event, float(getattr(event, own_time)) / 1000) for event in events if event.device_type.name == kind]
    spent.sort(key=lambda pair: -pair[1])
    total = sum(milliseconds for _, milliseconds in spent)
    waits = sum(event.count for event in events if event.key in WAITS)
    return Profile(
        busy_milliseconds=total / repetitions,
        kernels=sum(event.count for event, _ in spent) / repetitions,
        waits=waits / repetitions,
        rows=[
            Row(event.key, event.count / repetitions, milliseconds / repetitions, milliseconds / max(total, 1e-9))
            for event, milliseconds in spent[:TOP]
        ],
    )


def _write_trace(recorded: Any, events: Any, device: torch.device, stem: Path) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    order = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    table = events.table(sort_by=order, row_limit=60, max_name_column_width=80)
    stem.with_name(f"{stem.name}.txt").write_text(table, encoding="utf-8")
    plain = stem.with_name(f"{stem.name}.json")
    recorded.export_chrome_trace(str(plain))
    with gzip.open(f"{plain}.gz", "wb") as packed:
        packed.write(plain.read_bytes())
    plain.unlink()


def format_profile(found: Profile, seconds: float) -> str:
    """The top rows, and how busy the device was in ``seconds``, the time of one repetition without the profiler."""
    milliseconds = 1000 * seconds
    lines = [
        f"busy {found.busy_milliseconds:.1f} of {milliseconds:.1f} ms ({found.busy_milliseconds / milliseconds:.0%}), "
        f"{found.kernels:,.0f} kernels, the host waits {found.waits:.1f} times"
    ]
    for row in found.rows:
        lines.append(f"  {row.milliseconds:9.3f} ms {row.share:5.1%} {row.calls:7.0f}x  {row.name[:100]}")
    return "\n".join(lines)
