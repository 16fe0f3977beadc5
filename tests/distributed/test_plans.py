"""Runs whose epochs are planned in windows or whose updates grow by stages: on any number of ranks, and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.training.cases import assert_same_weights, case, train_cases
from support.training.runs import losses, trace

from dstransformer.training.checkpoints.format import read_checkpoint

UPDATES = 24
WINDOWS = "training.window_pairs=150"
STAGES = [
    "batch.stages=[{epochs: 0.2, share: 0.3}, {epochs: 0.4, share: 0.6}]",
    "batch.src_tokens=2400", "batch.tgt_tokens=2400",
]  # fmt: skip

#: The update of the checkpoint that each kind of run resumes from, and its overrides.
KINDS = {
    "windows": (13, [WINDOWS, "training.bpe_dropout=0.1"]),
    "stages": (10, STAGES),
    "stages-in-windows": (10, [*STAGES, WINDOWS]),
}


@pytest.fixture(scope="module")
def runs(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each kind: the whole run on two ranks, one that resumes it, and both again on one rank."""
    out = tmp_path_factory.mktemp("plans")
    for ranks, names in ((2, ("whole", "resumed")), (1, ("alone", "moved"))):
        cases = []
        for kind, (saved_at, overrides) in KINDS.items():
            common = ["model.dropout=0.1", f"training.max_updates={UPDATES}", f"checkpoint.every_updates={saved_at}"]
            whole, resumed = (f"{kind}-{name}" for name in names)
            cases.append(case(whole, *common, *overrides))
            cases.append(case(resumed, *common, *overrides, resume=str(checkpoint_of(Path(), kind))))
        train_cases(out, toy_corpus, cases, ranks)
    return out


def checkpoint_of(runs: Path, kind: str) -> Path:
    """The checkpoint from which runs of this kind resume."""
    return runs / f"{kind}-whole" / "checkpoints" / f"step-{KINDS[kind][0]:08}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumes_bit_for_bit_on_any_number_of_ranks(runs: Path, kind: str) -> None:
    saved_at, _ = KINDS[kind]
    whole, resumed, alone, moved = (runs / f"{kind}-{name}" for name in ("whole", "resumed", "alone", "moved"))
    assert losses(resumed) == losses(whole)[saved_at:]
    assert_same_weights(resumed, whole)
    assert trace(resumed, "tgt_tokens") == trace(whole, "tgt_tokens")[saved_at:]
    assert trace(alone, "tgt_tokens") == trace(whole, "tgt_tokens")
    assert losses(alone) == pytest.approx(losses(whole), rel=1e-5), "the same updates on one rank"
    assert losses(moved) == pytest.approx(losses(whole)[saved_at:], rel=1e-5)


@pytest.mark.slow
def test_they_resumed_inside_of_a_window_and_of_a_stage(runs: Path) -> None:
    position = read_checkpoint(checkpoint_of(runs, "windows")).state.position
    assert (position.epoch, position.window, position.update) == (0, 1, 3)
    for kind in ("stages", "stages-in-windows"):
        assert read_checkpoint(checkpoint_of(runs, kind)).state.position.epoch == 0
        sizes, saved_at = trace(runs / f"{kind}-whole", "tgt_tokens"), KINDS[kind][0]
        assert max(sizes[:6]) <= 720
        assert 720 < max(sizes[saved_at - 2 : saved_at + 2]) <= 1440, "the second stage goes on after the checkpoint"
        assert 1440 < max(sizes[-8:]) <= 2400
