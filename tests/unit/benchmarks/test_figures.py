"""The arithmetic behind figures of ``docs/benchmarks.md``."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.cases import SMOKE, Case
from benchmarks.gpu.text import build_updates
from benchmarks.gpu.training import update_flops
from benchmarks.lib.bare import BareStepper
from benchmarks.lib.intervals import format_mean, mean_interval
from benchmarks.resilience.faults.comparing import compare_runs
from benchmarks.resilience.faults.plan import Case as Campaign
from benchmarks.resilience.faults.report import CaseResult, all_is_well
from benchmarks.resilience.faults.running import FaultResult
from benchmarks.training.learning import Result, format_results, updates_to_reach
from dstransformer.data.plan import Budget


def test_an_interval_is_that_of_students_t() -> None:
    mean, half = mean_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / 3**0.5)  # a standard deviation of 1
    assert mean_interval([5.0]) == (5.0, None)
    assert format_mean([-0.25, -0.25], "+.2f") == "-0.25 ± 0.00"


def test_the_update_at_which_a_curve_reaches_a_loss_is_interpolated() -> None:
    curve = [(100, 4.0), (200, 3.0), (300, 3.5), (400, 2.0)]
    assert updates_to_reach(curve, 3.25) == 175
    assert updates_to_reach(curve, 4.5) == 100
    assert updates_to_reach(curve, 1.9) is None


def test_differences_are_to_the_reference_with_the_same_seed() -> None:
    def result(*losses: float) -> Result:
        curve = [(100 * number, loss) for number, loss in enumerate(losses, start=1)]
        return Result({"batch": {"tgt_tokens": 2048}}, curve, losses[-1] - 0.1, 10.0, 200.0)

    table = format_results({
        "reference": {1: result(4.0, 3.0), 2: result(5.0, 3.5)},
        "better": {1: result(3.0, 2.5), 2: result(3.5, 3.0)},
        "worse": {2: result(5.0, 4.0)},
    })  # fmt: skip
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    reference, better, worse = rows[2:]
    assert reference[1:6] == ["200 x 2,048", "2", "3.250", "", "3.150"]
    assert better[3:5] == ["2.750", "-0.500 ± 0.000"]
    assert better[9:] == ["100 ± 0", "204,800", "1.00"]
    assert worse[4] == "+0.500"
    assert worse[9] == "not reached in 1 of 1"


def test_counted_flops_match_those_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", "0")  # the FLOP counter does not see their products
    config = Case("train", "base", "bf16", "padded", micro_batches=16, loop="bare", work=SMOKE).load_config()
    updates = build_updates(Budget(6000, 6000, 16), 1, SMOKE.vocabulary)
    stepper = BareStepper(config, SMOKE.vocabulary, "bf16", torch.device("cpu"))
    with FlopCounterMode(display=False) as counter:
        stepper.step(updates[0])
    # Padding and the masked half of causal attention are computed, but do not count as work of the model.
    assert 0.75 < update_flops(config, SMOKE.vocabulary, updates) / counter.get_total_flops() <= 1.0


def save_run(folder: Path, cuts: tuple[int, ...] = (), weight: float = 1.0, loss: float = 2.0) -> Path:
    """A run of a parameter of six elements, whose last checkpoint is cut into files at these elements."""
    state = folder / "checkpoints" / "step-00000002" / "state"
    state.mkdir(parents=True)
    (folder / "bundle").mkdir()
    values = np.arange(6, dtype=np.float32)
    values[4] *= np.float32(weight)
    for rank, (start, end) in enumerate(itertools.pairwise([0, *cuts, 6])):
        save_file({f"weight/layer/{start}": values[start:end]}, state / f"rank-{rank:05d}.safetensors")
    save_file({"layer": values}, folder / "bundle" / "model.safetensors")
    lines = [{"kind": "train", "step": step, "loss": value} for step, value in enumerate((3.0, loss), 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_runs_with_faults_are_compared_bit_for_bit(tmp_path: Path) -> None:
    reference = save_run(tmp_path / "reference")
    assert compare_runs(save_run(tmp_path / "same", cuts=(2, 3)), reference) == (0, 0.0, 0)
    other = compare_runs(save_run(tmp_path / "weight", weight=1 + 2**-23), reference)
    assert other.bits == 2, "one in the checkpoint, one in the bundle"
    close = compare_runs(save_run(tmp_path / "loss", loss=2.0 * (1 + 1e-6)), reference)
    fixed = Campaign(1, "fp32", (2,), (), 3)
    assert not all_is_well([CaseResult(fixed, [], difference=close)])
    moving = fixed._replace(world_sizes=(2, 1))
    assert all_is_well([CaseResult(moving, [], difference=close)])
    hung = FaultResult("zero1", "kill-rank", "update", injected=True, hung=True)
    assert not all_is_well([CaseResult(moving, [hung], difference=close)])
