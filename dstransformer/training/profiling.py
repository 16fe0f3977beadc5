"""``dst train --profile N``: a trace of N updates, and the operators that took the longest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from dstransformer.io.files import replace_file, storage_errors
from dstransformer.tracking.events import Event, Message, RunEnd, Tracker, UpdateDone

#: Updates before the trace: the first ones compile, allocate and fill caches.
SKIPPED = 3

#: Operators in the table.
OPERATORS = 10


class Profiler(Tracker):
    """Traces updates of rank 0 with PyTorch's profiler.

    It writes ``profile/trace.json.gz``, which https://ui.perfetto.dev opens, and ``profile/operators.txt``. The tracker
    receives that table as a message.
    """

    name = "the profiler"

    def __init__(self, updates: int, run: Path, tracker: Tracker) -> None:
        self._updates = updates
        self._folder = run / "profile"
        self._tracker = tracker
        has_cuda = torch.cuda.is_available()
        self._order = "self_device_time_total" if has_cuda else "self_cpu_time_total"
        self._profile: Any = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_cuda else [])],
            schedule=schedule(wait=SKIPPED - 1, warmup=1, active=updates, repeat=1),
            on_trace_ready=self._write,
        )
        self._is_running = False

    def emit(self, event: Event) -> None:
        """See ``Tracker.emit``."""
        match event:
            case UpdateDone() if not self._is_running:
                self._profile.start()
                self._is_running = True
            case UpdateDone():
                self._profile.step()
            case RunEnd() if self._is_running:
                self._profile.stop()
                if not (self._folder / "trace.json.gz").is_file():
                    self._tracker.emit(Message(f"no profile: the run ended before its update {SKIPPED + 1}"))

    def _write(self, profiled: Any) -> None:
        table = profiled.key_averages().table(sort_by=self._order, row_limit=OPERATORS)
        trace = self._folder / "trace.json.gz"
        with storage_errors(self._folder):
            self._folder.mkdir(exist_ok=True)
            profiled.export_chrome_trace(str(trace))
            replace_file(self._folder / "operators.txt", table)
        self._tracker.emit(
            Message(f"{table}\nprofile of {self._updates} updates: {trace}, for https://ui.perfetto.dev")
        )
