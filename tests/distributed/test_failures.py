"""Failures with real ranks: a mistake, a full disk, damage or divergence on one rank ends all of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support.data.corpora import build_toy
from support.processes.launching import finish, run_dst, wait_until
from support.processes.ranks import finish_all, run_dst_ranks, srun
from support.training.runs import TINY, latest_state, losses

from dstransformer.model import open_bundle

HALF = {"bf16": {"enabled": False}, "fp16": {"enabled": False}}


def train_arguments(corpus: Path, run: Path, *overrides: str, ds: tuple[str, ...] = ("zero2", "fp32")) -> list[str]:
    options = ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--ds", *ds, "--set", *TINY]
    return [*options, "training.max_updates=6", "checkpoint.every_updates=2", *overrides]


@pytest.fixture(scope="module")
def trained(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks, with checkpoints at updates 2, 4 and 6."""
    run = tmp_path_factory.mktemp("runs") / "trained"
    done = run_dst_ranks(2, *train_arguments(toy_corpus, run))
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture
def again(trained: Path, tmp_path: Path) -> Path:
    """A copy of that run, to resume."""
    run = tmp_path / "again"
    shutil.copytree(trained, run)
    return run


def assert_one_error(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Check that there is exactly one error line, with these parts, and no traceback."""
    lines = [line for line in done.stderr.splitlines() if "error:" in line and line.startswith("dst")]
    assert len(lines) == 1, done.stderr
    for part in parts:
        assert part in lines[0]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
class TestMistakes:
    def test_a_mistake_on_one_node_ends_all_ranks(self, toy_corpus: Path, tmp_path: Path) -> None:
        run = tmp_path / "run"
        with srun(train_arguments(toy_corpus, run), train_arguments(tmp_path / "no-corpus", run)) as ranks:
            outputs = finish_all(ranks)
        assert [rank.returncode for rank in ranks] == [2, 2], outputs
        (line,) = (line for line in outputs[0][1].splitlines() if line.startswith("dst: error:"))
        assert "rank 1 on" in line
        assert f"{tmp_path / 'no-corpus'} is not a corpus" in line
        assert "error" not in outputs[1][1]
        assert not run.exists()

    def test_a_json_that_deepspeed_rejects_is_reported_once(self, toy_corpus: Path, tmp_path: Path) -> None:
        wrong = tmp_path / "wrong.json"
        wrong.write_text(json.dumps({"zero_optimization": {"stage": 2, "overlap_comm": "sometimes"}, **HALF}))
        done = run_dst_ranks(2, *train_arguments(toy_corpus, tmp_path / "run", ds=(str(wrong),)))
        assert done.returncode != 0
        assert_one_error(done, "DeepSpeed rejects its configuration", "overlap_comm")

    @pytest.mark.parametrize(("ranks", "ds", "layout"), [
        pytest.param(1, ("zero2", "fp32"), "1 rank, ZeRO stage 2, fp32", marks=pytest.mark.extended),
        (2, ("zero3", "fp32"), "2 ranks, ZeRO stage 3, fp32"),
        pytest.param(2, ("zero2", "bf16"), "2 ranks, ZeRO stage 2, bf16", marks=pytest.mark.extended),
    ])  # fmt: skip
    def test_another_layout_resumes_and_says_so(
        self, again: Path, toy_corpus: Path, ranks: int, ds: tuple[str, ...], layout: str
    ) -> None:
        done = run_dst_ranks(ranks, *train_arguments(toy_corpus, again, "training.max_updates=8", ds=ds))
        assert done.returncode == 0, done.stderr
        said = f"step-00000006 was computed with 2 ranks, ZeRO stage 2, fp32, this run resumes with {layout}"
        assert said in done.stderr
        assert "UserWarning" not in done.stderr
        state = latest_state(again)
        assert (state["step"], state["world_size"], f"ZeRO stage {state['zero_stage']}, {state['precision']}") == (
            8, ranks, layout.partition(", ")[2],
        )  # fmt: skip

    def test_a_checkpoint_of_another_run_is_refused(self, again: Path, trained: Path, toy_corpus: Path) -> None:
        there = trained / "checkpoints" / "step-00000002"
        done = run_dst_ranks(2, *train_arguments(toy_corpus, again), "--resume", str(there))
        assert done.returncode != 0
        assert_one_error(done, f"--resume {there} is not a checkpoint of {again}, which has its own")
        assert latest_state(again)["step"] == 6

    def test_different_presets_on_two_nodes_are_refused(self, toy_corpus: Path, tmp_path: Path) -> None:
        run = tmp_path / "run"
        with srun(
            train_arguments(toy_corpus, run), train_arguments(toy_corpus, run, "training.max_updates=7")
        ) as ranks:
            outputs = finish_all(ranks)
        assert [rank.returncode for rank in ranks] == [2, 2], outputs
        assert "has a different preset, DeepSpeed JSON or dstransformer version than" in outputs[0][1]
        assert not (run / "config.yaml").exists()

    def test_another_corpus_cannot_resume(self, again: Path, tmp_path: Path) -> None:
        other = build_toy(tmp_path / "other", pairs=300)
        done = run_dst_ranks(2, *train_arguments(other, again, "training.max_updates=8"))
        assert done.returncode != 0
        assert_one_error(done, "it was trained on another corpus than")


@pytest.mark.slow
def test_resuming_with_other_kernels_warns_once(again: Path, toy_corpus: Path) -> None:
    arguments = train_arguments(toy_corpus, again, "training.max_updates=7")
    done = run_dst_ranks(2, *arguments, extra={"DST_CPU_KERNELS": "0"})
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "may differ in the last bits" in line]
    assert len(lines) == 1, done.stderr
    assert "cpu_kernels none: results" in lines[0]


@pytest.mark.slow
class TestPeers:
    def test_a_second_trainer_of_the_same_run_is_refused(self, toy_corpus: Path, tmp_path: Path) -> None:
        run = tmp_path / "run"
        arguments = train_arguments(toy_corpus, run, "training.max_updates=100000", "checkpoint.every_updates=0")
        with srun(arguments) as (first,):
            wait_until((run / "metrics.jsonl").exists, running=[first])
            second = run_dst(*arguments)
            assert second.returncode == 2, second.stderr
            assert_one_error(second, f"another process is training in {run} (process {first.pid} on")
            assert first.poll() is None

    def test_a_killed_rank_ends_the_others(self, toy_corpus: Path, tmp_path: Path) -> None:
        run = tmp_path / "run"
        arguments = train_arguments(toy_corpus, run, "training.max_updates=100000", "checkpoint.every_updates=0")
        with srun(arguments, arguments) as ranks:
            wait_until((run / "metrics.jsonl").exists, running=ranks)
            ranks[1].kill()
            _, errors = finish(ranks[0])
        assert ranks[0].returncode == 1, errors
        (line,) = (line for line in errors.splitlines() if "error:" in line)
        assert line.startswith("dst: error: rank 1 on "), "without any option"
        assert "has died or stopped; " in line


@pytest.mark.slow
class TestDamage:
    def test_a_damaged_checkpoint_falls_back_to_the_previous_one(
        self, again: Path, trained: Path, toy_corpus: Path
    ) -> None:
        weights = again / "checkpoints" / "step-00000006" / "bundle" / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-5] ^= 1
        weights.write_bytes(content)
        done = run_dst_ranks(2, *train_arguments(toy_corpus, again))
        assert done.returncode == 0, done.stderr
        assert f"{weights} is missing or damaged" in done.stderr
        assert latest_state(again)["step"] == 6
        assert losses(again) == losses(trained)
        assert weights.read_bytes() == (trained / weights.relative_to(again)).read_bytes()

    def test_a_run_with_only_damaged_checkpoints_is_refused(self, again: Path, toy_corpus: Path) -> None:
        for manifest in again.glob("checkpoints/*/manifest.json"):
            manifest.write_text("{")
        done = run_dst_ranks(2, *train_arguments(toy_corpus, again))
        assert done.returncode != 0
        assert_one_error(done, "every checkpoint in", "is damaged")
        assert len(list(again.glob("checkpoints/step-*"))) == 3


@pytest.mark.slow
class TestDivergence:
    def test_divergence_keeps_the_last_good_checkpoint(self, toy_corpus: Path, tmp_path: Path) -> None:
        run = tmp_path / "run"
        overrides = ("schedule.scale=1e30", "checkpoint.every_updates=1", "training.skip_budget=2")
        done = run_dst_ranks(2, *train_arguments(toy_corpus, run, *overrides))
        assert done.returncode == 1, done.stderr
        assert_one_error(done, "training diverged: the losses or gradients of 3 updates in a row")
        assert "back to the checkpoint of update" in done.stderr
        weights = open_bundle(run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip() / "bundle")
        assert all(weight.isfinite().all() for weight in weights.load_weights().values())
        assert not list(run.glob("checkpoints/.*"))

    @pytest.mark.parametrize("stage", [pytest.param("zero0", marks=pytest.mark.extended), "zero2"])
    def test_fp16_gives_up_at_the_smallest_loss_scale(self, toy_corpus: Path, tmp_path: Path, stage: str) -> None:
        half = tmp_path / "half.json"
        half.write_text(json.dumps({"fp16": {"enabled": True, "initial_scale_power": 3, "hysteresis": 1}}))
        overrides = ("schedule.scale=1e30", "training.skip_budget=1", "checkpoint.every_updates=0")
        arguments = train_arguments(toy_corpus, tmp_path / "run", *overrides, ds=(stage, str(half)))
        done = run_dst_ranks(2, *arguments)
        assert done.returncode == 1, done.stderr
        assert_one_error(done, "updates in a row, up to", "are NaN or infinite, and the loss scale cannot fall")
