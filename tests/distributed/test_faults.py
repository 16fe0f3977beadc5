"""A short campaign of faults; ``python -m benchmarks faults`` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.resilience.faults.campaign import run_campaign
from benchmarks.resilience.faults.plan import KINDS, STAGES, Case, Fault, plan_campaign
from benchmarks.resilience.faults.report import all_is_well

#: In the order of their updates. The others are slower, or wait for time to pass.
FAULTS = (
    Fault("kill-rank", "checkpoint", 5, 0.3, 1),
    Fault("kill-all", "rename", 8, 0.5, 0),
    Fault("sigterm", "update", 12, 0.5, 1),
    Fault("flipped-bit", "update", 18, 0.5, 0),
    Fault("full-disk", "checkpoint", 19, 0.2, 0),
    Fault("sigusr1", "checkpoint", 22, 0.5, 0),
    Fault("kill-all", "end", 30, 0.3, 0),
)


@pytest.mark.slow
def test_a_run_with_seven_faults_ends_as_one_without(toy_corpus: Path, tmp_path: Path) -> None:
    said: list[str] = []
    case = Case(2, "bf16", (2,), FAULTS, updates=30)
    results = run_campaign([case], toy_corpus, tmp_path, 600.0, said.append)
    assert all_is_well(results), "\n".join([*said, *map(str, results)])
    assert sum(fault.injected for fault in results[0].faults) >= 3, said


def test_a_campaign_deals_every_fault_over_all_layouts() -> None:
    cases = plan_campaign(1, 200)
    assert cases == plan_campaign(1, 200)
    assert cases != plan_campaign(2, 200)
    faults = [fault for case in cases for fault in case.faults]
    assert len(faults) == 200
    assert {fault.name for fault in faults} == {f"{kind}/{moment}" for kind, ms in KINDS.items() for moment in ms}
    assert {(case.stage, case.precision) for case in cases} == {
        (s, p) for s in STAGES for p in ("fp32", "bf16", "fp16")
    }
    assert sum(case.is_moving for case in cases) == len(cases) / 2
    assert len({case.name for case in cases}) == len(cases), "each has a folder of its own"
    for case in cases:
        updates = [fault.update for fault in case.faults]
        assert updates == sorted(updates)
        assert updates[-1] <= case.updates
