"""Runs a planned campaign."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.resilience.faults.comparing import compare_runs
from benchmarks.resilience.faults.disk import Disk
from benchmarks.resilience.faults.plan import Case
from benchmarks.resilience.faults.report import CaseResult
from benchmarks.resilience.faults.running import CaseRun, Strike, run_undisturbed


def run_campaign(
    cases: Sequence[Case],
    corpus: Path,
    folder: Path,
    patience: float,
    say: Callable[[str], None],
    *,
    seconds: float = math.inf,
) -> list[CaseResult]:
    """Run all cases one after the other.

    Args:
        cases: The plan.
        corpus: The corpus that all train on.
        folder: For the runs.
        patience: Seconds after which a run that neither goes on nor ends counts as hung.
        say: Called with a line after each fault and each run.
        seconds: After this time no further run is begun.
    """
    began = time.monotonic()
    within = itertools.takewhile(lambda _: time.monotonic() - began < seconds, cases)
    return [_run_case(case, corpus, folder, patience, say) for case in within]


def _run_case(case: Case, corpus: Path, folder: Path, patience: float, say: Callable[[str], None]) -> CaseResult:
    began = time.monotonic()
    reference = folder / f"zero{case.stage}-{case.precision}-undisturbed"
    if not reference.exists():
        run_undisturbed(case, corpus, reference)
    disk = Disk(folder / case.name)
    try:
        runner = CaseRun(case, corpus, disk, patience)
        strikes = []
        for strike in runner.strikes():
            strikes.append(strike)
            say(f"{case.name}: {_describe(strike)}")
        result = CaseResult(case, strikes, runner.problems)
        if not any(problem.startswith("the run did not") for problem in runner.problems):
            result.difference = compare_runs(runner.run, reference)
        result.seconds = time.monotonic() - began
        say(f"{case.name}: {result.mismatch or 'as the undisturbed run'}, {result.seconds:.0f} s; {runner.problems}")
        return result
    finally:
        disk.close()


def _describe(strike: Strike) -> str:
    what = f"{strike.kind} in {strike.moment}"
    if not strike.injected:
        return f"{what}: not injected, {strike.reason}"
    then = "hung" if strike.hung else "ended" if strike.ended else "went on"
    return f"{what} at update {strike.update}: {then} after {strike.seconds} s; {'; '.join(strike.complaints)}"
