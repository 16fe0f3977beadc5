"""Runs a planned campaign."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.resilience.faults.comparing import compare_runs
from benchmarks.resilience.faults.disk import Disk
from benchmarks.resilience.faults.plan import Case
from benchmarks.resilience.faults.report import CaseResult
from benchmarks.resilience.faults.running import CaseRun, FaultResult, run_undisturbed


def run_campaign(
    cases: Sequence[Case],
    corpus: Path,
    folder: Path,
    timeout: float,
    log: Callable[[str], None],
) -> list[CaseResult]:
    """Run all cases one after the other.

    Args:
        cases: The plan.
        corpus: The corpus that all train on.
        folder: For the runs.
        timeout: A run without progress for so many seconds has hung.
        log: Called with a line after each fault and each run.
    """
    return [_run_case(case, corpus, folder, timeout, log) for case in cases]


def _run_case(case: Case, corpus: Path, folder: Path, timeout: float, log: Callable[[str], None]) -> CaseResult:
    began = time.monotonic()
    reference = folder / f"zero{case.stage}-{case.precision}-undisturbed"
    if not reference.exists():
        run_undisturbed(case, corpus, reference)
    disk = Disk(folder / case.name)
    try:
        runner = CaseRun(case, corpus, disk, timeout)
        results = []
        for result in runner.inject_faults():
            results.append(result)
            log(f"{case.name}: {_describe(result)}")
        case_result = CaseResult(case, results, runner.problems)
        if not any(problem.startswith("the run did not") for problem in runner.problems):
            case_result.difference = compare_runs(runner.run, reference)
        case_result.seconds = time.monotonic() - began
        verdict = case_result.mismatch or "as the undisturbed run"
        log(f"{case.name}: {verdict}, {case_result.seconds:.0f} s; {runner.problems}")
        return case_result
    finally:
        disk.close()


def _describe(result: FaultResult) -> str:
    what = f"{result.kind} in {result.moment}"
    if not result.injected:
        return f"{what}: not injected, {result.reason}"
    then = "hung" if result.hung else "ended" if result.ended else "went on"
    return f"{what} at update {result.update}: {then} after {result.seconds} s; {'; '.join(result.complaints)}"
