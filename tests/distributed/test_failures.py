"""Failures with real ranks: a mistake, a full disk, damage or divergence on one rank ends all of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.processes.launching import run_dst, wait_until
from support.processes.ranks import finish_all, run_dst_ranks, srun
from support.training.runs import TINY, latest_state, plain_options

pytestmark = pytest.mark.slow

HALF = {"bf16": {"enabled": False}, "fp16": {"enabled": False}}


def train_arguments(corpus: Path, run: Path, *overrides: str, ds: tuple[str, ...] = ("zero2", "fp32")) -> list[str]:
    options = ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--ds", *ds, "--set", *TINY]
    return [*options, "training.max_updates=6", "checkpoint.every_updates=2", *overrides]


def resume(ranks: int, corpus: Path, run: Path, *overrides: str, ds: tuple[str, ...], **variables: str) -> str:
    """Give the command of a copy of the plain run again, on a number of ranks; return what they say."""
    command = [*plain_options(corpus, run, "tracking.enabled=false", *overrides), "--ds", *ds]
    done = run_dst_ranks(ranks, *command, extra=variables)
    assert done.returncode == 0, done.stderr
    return done.stderr


def assert_one_error(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Check that there is exactly one error line, with these parts, and no traceback."""
    lines = [line for line in done.stderr.splitlines() if "error:" in line and line.startswith("dst")]
    assert len(lines) == 1, done.stderr
    for part in parts:
        assert part in lines[0]
    assert "Traceback" not in done.stderr


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

    def test_another_layout_and_other_kernels_resume_and_say_so(self, plain_copy: Path, toy_corpus: Path) -> None:
        changes = "training.max_updates=14"
        printed = resume(2, toy_corpus, plain_copy, changes, ds=("zero3", "fp32"), DST_CPU_KERNELS="0")
        said = "step-00000012 was computed with 1 rank, ZeRO stage 1, fp32, this run resumes with 2 ranks, ZeRO stage 3"
        assert said in printed
        assert "UserWarning" not in printed
        (line,) = (line for line in printed.splitlines() if "may differ in the last bits" in line)
        assert "cpu_kernels none: results" in line
        state = latest_state(plain_copy)
        assert (state["step"], state["world_size"], state["zero_stage"], state["precision"]) == (14, 2, 3, "fp32")

    def test_different_presets_on_two_nodes_are_refused(self, toy_corpus: Path, tmp_path: Path) -> None:
        run = tmp_path / "run"
        with srun(
            train_arguments(toy_corpus, run), train_arguments(toy_corpus, run, "training.max_updates=7")
        ) as ranks:
            outputs = finish_all(ranks)
        assert [rank.returncode for rank in ranks] == [2, 2], outputs
        assert "has a different preset, DeepSpeed JSON or dstransformer version than" in outputs[0][1]
        assert not (run / "config.yaml").exists()


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
