from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks.resilience.faults.comparing import compare_runs
from benchmarks.resilience.faults.damage import damage_newest
from benchmarks.resilience.faults.plan import Case, Fault
from benchmarks.resilience.faults.report import CaseResult, all_is_well, summarise
from benchmarks.resilience.faults.running import FaultResult

CASE = Case(1, "fp32", (2,), (), 3)


def save_run(
    folder: Path, cuts: tuple[int, ...] = (), weight: float = 1.0, losses: tuple[float, ...] = (3.0, 2.0)
) -> Path:
    """A run of a parameter of six elements, whose last checkpoint is cut into files at these elements."""
    state = folder / "checkpoints" / "step-00000002" / "state"
    state.mkdir(parents=True)
    (folder / "bundle").mkdir()
    values = np.arange(6, dtype=np.float32)
    values[4] *= np.float32(weight)
    edges = [0, *cuts, 6]
    for rank, (start, end) in enumerate(itertools.pairwise(edges)):
        save_file({f"weight/layer/{start}": values[start:end]}, state / f"rank-{rank:05d}.safetensors")
    save_file({"layer": values}, folder / "bundle" / "model.safetensors")
    lines = [
        {"kind": kind, "step": step, "time": 0.5 * step, "loss": loss, "tokens_per_second": loss / 7}
        for step, loss in enumerate(losses, 1)
        for kind in ("train", "cost")
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_runs_are_compared_bit_for_bit_whoever_wrote_which_part(tmp_path: Path) -> None:
    reference = save_run(tmp_path / "reference")
    assert compare_runs(save_run(tmp_path / "same", cuts=(2, 3)), reference) == (0, 0.0, 0)
    bits = compare_runs(save_run(tmp_path / "weight", weight=1 + 2**-23), reference).bits
    assert bits == 2, "one in the checkpoint, one in the bundle"
    lost = compare_runs(save_run(tmp_path / "lost", losses=(3.0,)), reference)
    assert (lost.bits, lost.missing) == (0, 1)
    loss = compare_runs(save_run(tmp_path / "loss", losses=(3.0, 2.002)), reference)
    assert loss.bits > 0
    assert loss.loss == pytest.approx(1e-3)


def test_the_verdict_says_what_is_not_as_promised(tmp_path: Path) -> None:
    reference, other = save_run(tmp_path / "reference"), save_run(tmp_path / "other", losses=(3.0, 2.0 * (1 + 1e-6)))
    found = compare_runs(other, reference)
    assert CaseResult(CASE, [], difference=found).mismatch.endswith("bits differ")
    moving = CaseResult(CASE._replace(world_sizes=(2, 1)), [], difference=found)
    assert moving.mismatch == ""
    assert all_is_well([moving])
    assert CaseResult(CASE, []).mismatch == "it did not end"
    hung = FaultResult("zero1", "kill-rank", "update", injected=True, hung=True)
    assert not all_is_well([CaseResult(CASE._replace(world_sizes=(2, 1)), [hung], difference=found)])
    assert summarise([CaseResult(CASE, [hung], difference=found)])["hung"] == 1


@pytest.mark.parametrize("kind", ["flipped-bit", "truncated-file", "missing-file"])
def test_only_the_newest_checkpoint_is_damaged(tmp_path: Path, kind: str) -> None:
    fault = Fault(kind, "update", 1, 0.5, 256)
    for step in (1, 2):
        folder = tmp_path / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text('{"step": 12, "sha256": "77"}')
        if step == 1:
            assert damage_newest(tmp_path, fault) is None, "there is nothing to fall back to"
    damaged = damage_newest(tmp_path, fault)
    assert damaged == tmp_path / "checkpoints" / "step-00000002" / "manifest.json"
    sound = tmp_path / "checkpoints" / "step-00000001" / "manifest.json"
    assert sound.read_text() == '{"step": 12, "sha256": "77"}'
    if kind == "flipped-bit":
        pairs = list(zip(sound.read_bytes(), damaged.read_bytes(), strict=True))
        (flipped,) = (one for one, other in pairs if one != other)
        assert chr(flipped).isdigit()
