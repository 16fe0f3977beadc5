"""The result of a campaign, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.resilience.faults.comparing import TOLERANCE, Difference
from benchmarks.resilience.faults.plan import KINDS, Case
from benchmarks.resilience.faults.running import Strike


@dataclass
class CaseResult:
    """A run and what became of it.

    Attributes:
        case: The run.
        strikes: Its faults.
        problems: What went wrong beside the faults.
        difference: From the run that was not disturbed; None if it did not end.
        seconds: That it took.
    """

    case: Case
    strikes: Sequence[Strike]
    problems: list[str] = field(default_factory=list)
    difference: Difference | None = None
    seconds: float = 0.0

    @property
    def mismatch(self) -> str:
        """How the run differs from the undisturbed one beyond what is promised; empty if it does not."""
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
    """Whether nothing hung, nothing complained, and every run is what the undisturbed one is."""
    return not any(
        result.mismatch or result.problems or any(s.hung or s.complaints for s in result.strikes) for result in results
    )


def print_report(results: Sequence[CaseResult]) -> None:
    """Print a table of kinds, a table of runs, the totals, and each complaint."""
    strikes = [strike for result in results for strike in result.strikes]
    print("\n| fault | injected | not met | resumes | updates lost, mean and most | seconds to the end, most | hung |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for kind in KINDS:
        _print_row(kind, [strike for strike in strikes if strike.kind == kind])
    _print_row("**all**", strikes)
    print("\n| run | processes | faults | bits that differ | largest difference of a loss | as promised |")
    print("|---|---|--:|--:|--:|---|")
    for result in results:
        sizes = ", ".join(map(str, result.case.world_sizes))
        bits, loss = ("", "") if (d := result.difference) is None else (f"{d.bits:,}", f"{d.loss:.1e}")
        injected = sum(strike.injected for strike in result.strikes)
        verdict = result.mismatch or "yes"
        print(f"| {result.case.name} | {sizes} | {injected} | {bits} | {loss} | {verdict} |")
    totals = summarise(results)
    print(
        f"\n{totals['faults']} faults, {totals['resumes']} resumes, {totals['updates_lost']} updates lost, "
        f"{totals['mismatched_bits']} mismatched bits in runs with a fixed layout, {totals['hung']} runs that hung"
    )
    for result in results:
        for problem in result.problems:
            print(f"{result.case.name}: {problem}")
        for strike in result.strikes:
            for complaint in strike.complaints:
                print(f"{result.case.name}: {strike.kind}/{strike.moment} at update {strike.update}: {complaint}")


def _print_row(name: str, strikes: Sequence[Strike]) -> None:
    injected = [strike for strike in strikes if strike.injected]
    resumed = [strike.lost for strike in strikes if strike.resumed_from is not None]
    lost = f"{sum(resumed) / len(resumed):.1f}, {max(resumed)}" if resumed else ""
    longest = max((strike.seconds for strike in injected), default=0.0)
    cells = [name, len(injected), len(strikes) - len(injected), len(resumed), lost, f"{longest:.1f}"]
    print(f"| {' | '.join(map(str, cells))} | {sum(strike.hung for strike in strikes)} |")


def summarise(results: Sequence[CaseResult]) -> dict[str, Any]:
    """The totals."""
    strikes = [strike for result in results for strike in result.strikes]
    fixed = [r.difference.bits for r in results if r.difference is not None and not r.case.is_moving]
    return {
        "faults": sum(strike.injected for strike in strikes),
        "not_met": sum(not strike.injected for strike in strikes),
        "resumes": sum(strike.resumed_from is not None for strike in strikes),
        "updates_lost": sum(strike.lost for strike in strikes),
        "mismatched_bits": sum(fixed),
        "hung": sum(strike.hung for strike in strikes),
        "complaints": sum(len(strike.complaints) for strike in strikes) + sum(len(r.problems) for r in results),
        "as_promised": all_is_well(results),
    }


def to_json(results: Sequence[CaseResult], seed: int) -> dict[str, Any]:
    """Everything, as plain data."""
    return {
        "seed": seed,
        "totals": summarise(results),
        "runs": [
            {
                "name": result.case.name,
                "world_sizes": result.case.world_sizes,
                "updates": result.case.updates,
                "difference": None if result.difference is None else result.difference._asdict(),
                "mismatch": result.mismatch,
                "problems": result.problems,
                "seconds": round(result.seconds, 1),
                "strikes": [asdict(strike) for strike in result.strikes],
            }
            for result in results
        ],
    }
