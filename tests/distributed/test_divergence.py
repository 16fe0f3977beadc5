"""Training that diverges goes back to its last good checkpoint, and passes over what made it diverge."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.processes.ranks import run_ranks

from dstransformer.model import open_bundle
from dstransformer.training.checkpoints.format import read_checkpoint, verify_checkpoint

WORKER = Path(__file__).with_name("worker.py")
COMMON = ["training.max_updates=10", "training.skip_budget=2", "checkpoint.every_updates=3", "checkpoint.keep_last=9"]
BAD = [4, 5, 6, 9]  # places in the first epoch, from 0; there is a checkpoint after the first three updates
LAYOUTS = ["zero0-fp32", "zero2-bf16", "zero3-fp32"]


def run_cases(out: Path, corpus: Path, cases: list[dict[str, Any]]) -> None:
    (out / "cases.json").write_text(json.dumps(cases))
    done = run_ranks(2, str(WORKER), str(out / "cases.json"), str(corpus), str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def runs(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that meet three bad updates in a row, in several layouts; and fp16 whose loss scale cannot fall."""
    out = tmp_path_factory.mktemp("divergence")
    cases: list[dict[str, Any]] = [
        {"name": name, "overrides": COMMON, "fragments": name.split("-"), "infinite_at": BAD} for name in LAYOUTS
    ]
    smallest = out / "smallest.json"
    smallest.write_text(json.dumps({"fp16": {"enabled": True, "initial_scale_power": 0, "hysteresis": 1}}))
    cases += [
        {"name": "fp16", "overrides": COMMON, "fragments": ["zero1", str(smallest)], "infinite_at": BAD},
        {
            "name": "never",
            "overrides": [*COMMON, "training.max_rollbacks=0"],
            "fragments": ["zero1", "fp32"],
            "infinite_at": BAD,
        },
        {
            "name": "again",  # goes back to update 6, then to update 3, then may not
            "overrides": [*COMMON, "training.max_rollbacks=2"],
            "fragments": ["zero1", "fp32"],
            "infinite_at": list(range(7, 20)),
        },
    ]
    run_cases(out, toy_corpus, cases)
    return out


def read_lines(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def outcome(run: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((run / "outcome.json").read_text())
    return said


@pytest.mark.slow
@pytest.mark.parametrize("layout", [*LAYOUTS, "fp16"])
def test_training_goes_back_and_on_with_the_data_after(runs: Path, layout: str) -> None:
    run = runs / layout
    assert outcome(run) == {"step": 10, "unchanged": [True] * 4, "diverged": None}
    assert [line["step"] for line in read_lines(run, "train")] == [1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9, 10]
    (rollback,) = read_lines(run, "rollback")
    assert (rollback["number"], rollback["step"], rollback["diverged_at"]) == (1, 3, 7)
    assert rollback["passed_over"] == [[0, 3], [0, 7]]
    assert [(bad["step"], bad["update"], bad["in_a_row"]) for bad in rollback["bad_updates"]] == [
        (5, 4, 1),
        (6, 5, 2),
        (7, 6, 3),
    ]
    last = read_lines(run, "bad_update")[-1]
    assert (last["update"], last["in_a_row"], last["step"]) == (9, 1, 6), "one bad update is skipped as ever"
    assert last["pairs"] == sorted(set(last["pairs"]))


@pytest.mark.slow
def test_the_sentences_of_bad_updates_are_the_plans(runs: Path, toy_corpus: Path) -> None:
    from dstransformer.data import Corpus
    from dstransformer.data.budget import build_budget
    from dstransformer.data.plan import plan_epoch
    from dstransformer.data.windows import training_lengths

    run = runs / LAYOUTS[0]
    config = open_bundle(run / "checkpoints" / "step-00000003" / "bundle").training_config()
    lengths = training_lengths(Corpus.open(toy_corpus).split("train"))
    plan = plan_epoch(*lengths, config.training.seed, 0, build_budget(config.batch))
    for bad in read_lines(run, "bad_update"):
        assert bad["pairs"] == sorted(plan.update(bad["update"]).tolist())


@pytest.mark.slow
def test_a_run_killed_after_it_went_back_ends_the_same(runs: Path, toy_corpus: Path, tmp_path: Path) -> None:
    """The checkpoint says where to go on: a run that resumes from it repeats the one that was never killed."""
    name = LAYOUTS[0]
    (tmp_path / name).mkdir()
    copied = tmp_path / name / "checkpoints" / "step-00000003"
    shutil.copytree(runs / name / "checkpoints" / "step-00000003", copied)
    verify_checkpoint(read_checkpoint(copied))
    state = read_checkpoint(copied).state
    assert (state.position.update, state.recovery.rollbacks, state.recovery.rollback_step) == (7, 1, 3)
    resumed = f"{name}/checkpoints/step-00000003"
    case = {"name": name, "overrides": COMMON, "fragments": name.split("-"), "infinite_at": BAD, "resume": resumed}
    run_cases(tmp_path, toy_corpus, [case])
    weights = [
        open_bundle(out / name / "checkpoints" / "step-00000010" / "bundle").load_weights() for out in (runs, tmp_path)
    ]
    assert all(weight.equal(weights[1][key]) for key, weight in weights[0].items())


@pytest.mark.slow
def test_without_rollbacks_the_run_ends(runs: Path) -> None:
    said = outcome(runs / "never")["diverged"]
    assert "the losses or gradients of 3 updates in a row, up to 7, are NaN or infinite" in said
    assert "training.skip_budget is 2" in said
    assert not read_lines(runs / "never", "rollback")


@pytest.mark.slow
def test_it_goes_back_further_if_it_diverges_again_and_ends_at_the_limit(runs: Path) -> None:
    rollbacks = read_lines(runs / "again", "rollback")
    assert [(one["number"], one["step"], one["diverged_at"]) for one in rollbacks] == [(1, 6, 10), (2, 3, 9)]
    assert rollbacks[1]["passed_over"] == [[0, 3], [0, 13]]
    assert "3 updates in a row, up to 6" in outcome(runs / "again")["diverged"]
    assert [path.name for path in sorted((runs / "again" / "checkpoints").glob("step-*"))] == ["step-00000003"]
