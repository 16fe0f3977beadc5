"""Runs one case of a campaign: starts the run, injects its faults, starts it again, until it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.training.runs import TINY

from benchmarks.resilience.faults.disk import Disk, damage_newest
from benchmarks.resilience.faults.jobs import DEEPSPEED, PLAIN, TORCHRUN, Job
from benchmarks.resilience.faults.plan import ASKS, DAMAGE, DISK, SAVE_EVERY, START, VALIDATE_EVERY, Case, Fault
from benchmarks.resilience.faults.watching import Progress, wait_for_moment
from dstransformer.distributed.supervision.rank_log import read_end
from dstransformer.errors import DataError
from dstransformer.training.checkpoints.format import read_checkpoint, verify_checkpoint

STOPPED = 143

#: Seconds for which a frozen process stands still, and a disk fails.
_FROZEN, _FAILING = 2.0, 5.0

#: Seconds after which a run of several processes ends itself when one of them does not answer.
_HANG_SECONDS = 30

#: Seconds that its processes wait for each other at the start.
_JOIN_SECONDS = 60

_FIRST_START_SECONDS = 5.0  # a guess, until the first start of the case has been seen


@dataclass
class FaultResult:
    """What a fault did to its run.

    Attributes:
        case: The name of its run.
        kind, moment: Of the fault.
        injected: Whether it was injected.
        reason: If not, why not.
        update: The last update that was logged before.
        ended: Whether the run ended because of it, and was started again.
        resumed_from: The update from which it then resumed.
        lost: Updates that had to be computed again.
        hung: Whether the run neither made progress nor ended.
        seconds: From the fault to the end of all processes.
        complaints: Each broken promise, in a sentence.
    """

    case: str
    kind: str
    moment: str
    injected: bool = False
    reason: str = ""
    update: int = 0
    ended: bool = False
    resumed_from: int | None = None
    lost: int = 0
    hung: bool = False
    seconds: float = 0.0
    complaints: list[str] = field(default_factory=list)


def train_arguments(case: Case, corpus: Path, run: Path) -> list[str]:
    """The arguments of ``dst`` for the run of a case."""
    options = ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--ds", f"zero{case.stage}", case.precision]
    values = [
        "model.dropout=0.1", "schedule.warmup_steps=4", f"training.max_updates={case.updates}",
        f"training.join_seconds={_JOIN_SECONDS}", f"training.hang_seconds={_HANG_SECONDS}",
        f"training.silence_seconds={_HANG_SECONDS}",
        f"validation.every={VALIDATE_EVERY}", f"checkpoint.every_updates={SAVE_EVERY}", "checkpoint.keep_last=3",
        "checkpoint.average_last=3", "checkpoint.retry_seconds=1",
    ]  # fmt: skip
    return [*options, "--set", *TINY, *values]


def run_undisturbed(case: Case, corpus: Path, run: Path) -> None:
    """Train without faults, with two processes.

    Raises:
        RuntimeError: The run failed.
    """
    job = Job(train_arguments(case, corpus, run), 2, PLAIN, run.with_suffix(".log"))
    try:
        job.wait(600.0, lambda: Progress(run).stamp)
        if job.statuses != [0, 0]:
            raise RuntimeError(f"the undisturbed run failed: {job.statuses}\n{job.output()[-4000:]}")
    finally:
        job.close()


class CaseRun:
    """Runs a case to its end.

    Args:
        case: The case.
        corpus: The corpus.
        disk: Where the run is.
        timeout: A run without progress for so long has hung.
    """

    def __init__(self, case: Case, corpus: Path, disk: Disk, timeout: float) -> None:
        self._case = case
        self._corpus = corpus
        self._disk = disk
        self._timeout = timeout
        self._run = disk.path / "run"
        self._progress = Progress(self._run)
        self._job: Job | None = None
        self._starts = 0
        self._start_seconds = _FIRST_START_SECONDS
        self._unresumed: list[FaultResult] = []  # faults after which the run has not logged an update yet
        self._damaged: Path | None = None
        self.problems: list[str] = []

    @property
    def run(self) -> Path:
        """The run folder."""
        return self._run

    def inject_faults(self) -> Iterator[FaultResult]:
        """Inject the faults one after the other, then let the run finish."""
        try:
            for fault in self._case.faults:
                result = FaultResult(self._case.name, fault.kind, fault.moment)
                self._inject(fault, result)
                yield result
            self._finish()
        finally:
            self._close()

    def _inject(self, fault: Fault, result: FaultResult) -> None:
        if fault.kind in DISK and not self._disk.is_real:
            result.reason = "mounting takes root"
            return
        launcher = PLAIN if fault.kind != "kill-launcher" else (DEEPSPEED, TORCHRUN)[fault.choice % 2]
        if self._job is not None and (self._job.launcher != launcher or not self._job.is_running):
            self._end_job(result)
        if self._is_complete:
            result.reason = "the run had ended"
            return
        job = self._job or self._start(launcher)
        came = wait_for_moment(
            fault, self._case, self._progress, lambda: job.is_running, job.began, self._start_seconds
        )
        self._check_resume(job)
        if not came and job.is_running:
            result.reason = "its moment did not come"
            return
        if not came:
            job.wait(self._timeout)
            self._end_job(result)
            result.reason = result.reason or "the run ended before"
            return
        result.injected, result.update = True, self._progress.update
        began = time.monotonic()
        if fault.kind in ("freeze-rank", *DISK):
            self._inject_temporary(fault, result, job)
        else:
            self._inject_fatal(fault, result, job)
        result.seconds = round(time.monotonic() - began, 2)

    def _inject_temporary(self, fault: Fault, result: FaultResult, job: Job) -> None:
        """Inject a fault that lasts a few seconds. The run survives it, or ends and resumes."""
        if fault.kind == "freeze-rank":
            target = self._target(fault, job)
            _signal([target], signal.SIGSTOP)
            time.sleep(_FROZEN)
            _signal([target], signal.SIGCONT)
        else:
            if not self._disk.fail(fault.kind):
                self._disk.heal(fault.kind)
                result.injected, result.reason = False, "the disk could not be made to fail"
                return
            deadline = time.monotonic() + _FAILING
            while time.monotonic() < deadline and not job.has_ended:
                time.sleep(0.05)
            self._disk.heal(fault.kind)
        if not self._progresses_or_ends(job):
            result.hung = True
            self._kill(job)
        if result.hung or not job.is_running:
            self._check_end(result, job, expected=None)

    def _progresses_or_ends(self, job: Job) -> bool:
        """Wait until the run writes again or all its processes have ended; False after ``timeout``."""
        before, deadline = self._progress.stamp, time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            if job.is_running and self._progress.stamp != before:
                return True
            if not job.is_running:
                return job.wait(self._timeout)
            time.sleep(0.02)
        return False

    def _inject_fatal(self, fault: Fault, result: FaultResult, job: Job) -> None:
        """Inject a fault that ends the run."""
        targets = self._targets(fault, job)
        numbers = {"sigterm": signal.SIGTERM, "sigusr1": signal.SIGUSR1, "stop-rank": signal.SIGSTOP}
        _signal(targets, numbers.get(fault.kind, signal.SIGKILL))
        if fault.kind == "stop-rank":
            self._wait_for_others(job, targets[0])
        result.hung = not job.wait(self._timeout)
        if result.hung:
            self._kill(job)
        expected = STOPPED if fault.kind in ASKS and fault.moment != START else None
        self._check_end(result, job, expected)
        if fault.kind in DAMAGE:
            self._damaged = damage_newest(self._run, fault)
            if self._damaged is None:
                result.injected, result.reason = False, "no older checkpoint; all processes were killed"

    def _wait_for_others(self, job: Job, stopped: int) -> None:
        """Wait until only the stopped process is left, then kill it, as a scheduler does."""
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            left = [pid for pid, status in zip(job.pids(), job.statuses, strict=True) if status is None]
            if left in ([stopped], []):
                _signal([stopped], signal.SIGKILL)
                return
            time.sleep(0.05)

    def _targets(self, fault: Fault, job: Job) -> Sequence[int]:
        asks_early = fault.kind in ASKS and fault.moment == START  # as schedulers do; one alone would leave the others
        if fault.kind == "kill-all" or fault.kind in DAMAGE or asks_early:
            return job.pids()
        if fault.kind == "kill-launcher":
            launchers = job.launchers()
            return [launchers[(fault.choice >> 4) % len(launchers)]]
        return [self._target(fault, job)]

    @staticmethod
    def _target(fault: Fault, job: Job) -> int:
        pids = job.pids()
        return pids[fault.choice % len(pids)]

    def _check_end(self, result: FaultResult, job: Job, expected: int | None) -> None:
        """Check how a start of the run ended.

        Args:
            result: The fault after which it ended.
            job: The processes.
            expected: The exit status that all of them must have, unless the run is complete; None for any.
        """
        result.ended = True
        output, statuses = job.output(), job.statuses
        if expected is not None and not self._is_complete and set(statuses) != {expected}:
            result.complaints.append(f"exit statuses {statuses}, not {expected}")
        left = [status for status in statuses if status != -signal.SIGKILL]
        if result.kind == "kill-launcher":  # deepspeed's reports 0 if a signal has ended its process on a node
            left = self._recorded_status(job)
        if not self._is_complete and 0 in left:
            result.complaints.append(f"exit statuses {statuses}, although the run is not complete")
        if "Traceback (most recent call last)" in output:
            result.complaints.append(f"a traceback: {_excerpt(output)}")
        failed = [status for status in left if status not in (0, None, STOPPED)]
        if result.kind in ASKS and result.moment == START:  # before Python has begun, a signal ends any program
            failed = [status for status in failed if status not in (-signal.SIGTERM, -signal.SIGUSR1)]
        if failed and job.launcher == PLAIN and not re.search(r"^dst( \(rank \d+\))?: error: ", output, re.MULTILINE):
            result.complaints.append(f"exit statuses {statuses} without a line that says why")
        result.complaints += self._damaged_checkpoints()
        self._unresumed.append(result)
        self._end_job(result)

    def _recorded_status(self, job: Job) -> list[int | None]:
        """The exit status that the run has recorded, if it has."""
        end = read_end(self._run)
        return [end.status] if end is not None and end.time > job.began else []

    def _damaged_checkpoints(self) -> list[str]:
        """What is wrong with visible checkpoints, each of which must be complete."""
        found = []
        for path in sorted((self._run / "checkpoints").glob("step-*")):
            try:
                verify_checkpoint(read_checkpoint(path))
            except (DataError, OSError) as error:
                if self._damaged is None or path not in self._damaged.parents:
                    found.append(str(error))
        return found

    def _check_resume(self, job: Job) -> None:
        """After a start: measure how long it took, and note the update from which the run resumed."""
        first = next((r for r in self._records() if r["kind"] == "train" and r["time"] >= job.began), None)
        if first is None:
            return
        self._start_seconds = min(self._start_seconds * 2, first["time"] - job.began)
        for result in self._unresumed:
            result.resumed_from = first["step"] - 1
            result.lost = max(0, result.update - first["step"] + 1)
            if result.kind in ASKS and result.moment != START and result.lost:
                result.complaints.append(f"{result.lost} updates lost, although it was asked to stop")
        self._unresumed.clear()
        if self._damaged is not None:
            if (
                str(self._damaged.parent if self._damaged.name == "manifest.json" else self._damaged)
                not in job.output()
            ):
                self.problems.append(f"the damage of {self._damaged} was not reported")
            self._damaged = None

    def _records(self) -> list[dict[str, Any]]:
        with suppress(OSError, ValueError):
            return [json.loads(line) for line in (self._run / "metrics.jsonl").read_text().splitlines()]
        return []

    @property
    def _is_complete(self) -> bool:
        return self._progress.is_complete

    def _start(self, launcher: str) -> Job:
        sizes = self._case.world_sizes
        ranks = sizes[min(self._starts, len(sizes) - 1)]
        self._starts += 1
        arguments = train_arguments(self._case, self._corpus, self._run)
        log = self._disk.path.with_name(f"launcher-{self._starts}.log")
        self._job = Job(arguments, ranks, launcher, log)
        return self._job

    def _end_job(self, result: FaultResult | None) -> None:
        """Kill the processes; note a problem if an incomplete run had ended by itself."""
        job, self._job = self._job, None
        if job is None:
            return
        if result is not None and not result.injected and job.has_ended and not self._is_complete:
            problem = f"ended by itself before {result.kind}/{result.moment}: {job.statuses}: {_excerpt(job.output())}"
            self.problems.append(problem)
        job.close()

    def _finish(self) -> None:
        """Let the run finish."""
        for _ in range(3):
            if self._is_complete and (self._job is None or self._job.has_ended):
                break
            job = self._job or self._start(PLAIN)
            ended = job.wait(self._timeout, lambda: self._progress.stamp)
            self._check_resume(job)
            if not ended:
                self.problems.append("hung at the end")
                self._kill(job)
            elif set(job.statuses) != {0}:
                self.problems.append(f"the last start ended with {job.statuses}: {_excerpt(job.output())}")
            job.close()
            self._job = None
        if not self._is_complete:
            self.problems.append("the run did not become complete")

    def _kill(self, job: Job) -> None:
        _signal(job.pids(), signal.SIGKILL)
        if job.launcher != PLAIN:
            _signal(job.launchers(), signal.SIGKILL)
        job.wait(60.0)

    def _close(self) -> None:
        if self._job is not None:
            self._job.close()
            self._job = None


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _excerpt(output: str) -> str:
    """The last lines that mention an error."""
    lines = [line for line in output.splitlines() if "rror" in line] or output.splitlines()
    return " | ".join(lines[-3:])[-600:]
