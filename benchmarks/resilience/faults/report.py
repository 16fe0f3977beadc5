"""The result of a campaign, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.lib.tables import format_table
from benchmarks.resilience.faults.comparing import TOLERANCE, Difference
from benchmarks.resilience.faults.plan import KINDS, Case
from benchmarks.resilience.faults.running import FaultResult

_FAULT_COLUMNS = (
    "fault | injected: | not met: | resumes: | updates lost, mean and most: | seconds to the end, most: | hung:"
)
_CASE_COLUMNS = "run | processes | faults: | bits that differ: | largest difference of a loss: | as promised"


@dataclass
class CaseResult:
    """How a run went.

    Attributes:
        case: The run.
        faults: What its faults did.
        problems: Broken promises that belong to no single fault.
        difference: From the run that was not disturbed; None if it did not end.
        seconds: That it took.
    """

    case: Case
    faults: Sequence[FaultResult]
    problems: list[str] = field(default_factory=list)
    difference: Difference | None = None
    seconds: float = 0.0

    @property
    def mismatch(self) -> str:
        """How the run differs from the undisturbed one beyond the tolerance; empty if it does not."""
        found = self.difference
        if found is None:
            return "it did not end"
        if found.missing:
            return f"{found.missing} updates are missing or there twice"
        if self.case.is_moving:
            limit = TOLERANCE[self.case.precision]
            return "" if found.loss <= limit else f"a loss differs by {found.loss:.1e}, more than {limit:.0e}"
        return "" if not found.bits else f"{found.bits:,} bits differ"


def all_is_well(results: Iterable[CaseResult]) -> bool:
    """Whether nothing hung, no promise was broken, and every run equals the undisturbed one."""
    return not any(
        result.mismatch or result.problems or any(s.hung or s.complaints for s in result.faults) for result in results
    )


def print_report(results: Sequence[CaseResult]) -> None:
    """Print a table of kinds, a table of runs, the totals, and each complaint."""
    faults = [fault for result in results for fault in result.faults]
    groups = {kind: [fault for fault in faults if fault.kind == kind] for kind in KINDS} | {"**all**": faults}
    print(f"\n{format_table(_FAULT_COLUMNS, (_fault_row(kind, group) for kind, group in groups.items()))}")
    print(f"\n{format_table(_CASE_COLUMNS, map(_case_row, results))}")
    bits = sum(r.difference.bits for r in results if r.difference is not None and not r.case.is_moving)
    print(f"\n{bits:,} bits differ in all runs with a fixed number of processes together")
    for result in results:
        for problem in result.problems:
            print(f"{result.case.name}: {problem}")
        for fault in result.faults:
            for complaint in fault.complaints:
                print(f"{result.case.name}: {fault.kind}/{fault.moment} at update {fault.update}: {complaint}")


def _fault_row(name: str, faults: Sequence[FaultResult]) -> str:
    injected = [fault for fault in faults if fault.injected]
    resumed = [fault.lost for fault in faults if fault.resumed_from is not None]
    lost = f"{sum(resumed) / len(resumed):.1f}, {max(resumed)}" if resumed else ""
    longest = max((fault.seconds for fault in injected), default=0.0)
    hung = sum(fault.hung for fault in faults)
    missed = len(faults) - len(injected)
    return f"{name} | {len(injected)} | {missed} | {len(resumed)} | {lost} | {longest:.1f} | {hung}"


def _case_row(result: CaseResult) -> str:
    sizes = ", ".join(map(str, result.case.world_sizes))
    bits, loss = ("", "") if (d := result.difference) is None else (f"{d.bits:,}", f"{d.loss:.1e}")
    injected = sum(fault.injected for fault in result.faults)
    return f"{result.case.name} | {sizes} | {injected} | {bits} | {loss} | {result.mismatch or 'yes'}"
