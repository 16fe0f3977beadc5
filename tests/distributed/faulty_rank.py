"""``dst`` in which some ranks fail at a point of the run. The variable DST_FAULT says where, which, and how.

With ``after``, a path, they fail once that exists. Ranks that torchrun has started again do not fail.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from dstransformer.cli import main
from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.supervision.heartbeat import HeartbeatMonitor
from dstransformer.training import plan

FAULT = json.loads(os.environ["DST_FAULT"])
RANK = read_processes(os.environ).rank

report, collect_facts = HeartbeatMonitor.report, plan.collect_facts


def fail(update: int, phase: str) -> None:
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    if again or RANK not in FAULT["ranks"] or phase != FAULT["phase"] or update < FAULT["update"]:
        return
    if FAULT["after"] is not None and not Path(FAULT["after"]).exists():
        return
    if FAULT["how"] == "hang":
        threading.Event().wait()
    os.kill(os.getpid(), signal.Signals[FAULT["how"]])


def report_and_fail(self: HeartbeatMonitor, update: int, phase: str) -> None:
    if FAULT["how"] == "hang":
        fail(update, phase)
        report(self, update, phase)
    else:
        report(self, update, phase)
        fail(update, phase)


def fail_in_setup(*arguments: Any) -> Any:
    fail(0, "set-up")
    return collect_facts(*arguments)


HeartbeatMonitor.report = report_and_fail  # type: ignore[method-assign]
plan.collect_facts = fail_in_setup
sys.exit(main())
