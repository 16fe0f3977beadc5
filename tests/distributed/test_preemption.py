"""With real ranks: stopping in the middle of a run, resuming, and nodes without a shared run folder."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from support.processes.launching import finish, forked, launcher, run_dst, started, wait_until
from support.processes.ranks import finish_all, run_dst_ranks, srun
from support.training.runs import TINY, latest_state, losses

UPDATES = 50

#: Updates of a run that only a signal ends.
MANY = 5000
STOPPED = 143


def train_arguments(corpus: Path, run: Path, updates: int = UPDATES) -> list[str]:
    options = ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--ds", "zero2", "fp32", "--set", *TINY]
    return [*options, "model.dropout=0.1", f"training.max_updates={updates}"]


def has_logged(run: Path, update: int) -> bool:
    return (run / "metrics.jsonl").exists() and len(losses(run)) >= update


def assert_stopped_cleanly(run: Path, after: int) -> int:
    """Check that the newest checkpoint is of the last logged update; return its number."""
    step = int(latest_state(run)["step"])
    assert after < step == len(losses(run)) < MANY
    assert not list((run / "checkpoints").glob(".*"))
    return step


@pytest.mark.slow
def test_a_run_stopped_twice_equals_an_uninterrupted_one(toy_corpus: Path, tmp_path: Path) -> None:
    """That deepspeed passes on the exit status is proved in test_two_nodes."""
    whole, run = tmp_path / "whole", tmp_path / "preempted"
    arguments = train_arguments(toy_corpus, run, MANY)

    # SLURM warns one task while DeepSpeed is still starting: both stop, with the exit status of an unfinished run.
    with srun(arguments, arguments) as ranks:
        wait_until((run / "ds_config.json").exists, running=ranks)
        ranks[0].send_signal(signal.SIGUSR1)
        outputs = finish_all(ranks)
    assert [rank.returncode for rank in ranks] == [STOPPED, STOPPED], outputs
    stopped = assert_stopped_cleanly(run, after=0)
    assert f"stopped by SIGUSR1 at step {stopped}; run the same command to resume" in outputs[0][0]

    # The same command resumes. SIGTERM then reaches the other rank.
    with srun(arguments, arguments) as ranks:
        wait_until(lambda: has_logged(run, stopped + 5), running=ranks)
        ranks[1].terminate()
        finish_all(ranks)
    assert [rank.returncode for rank in ranks] == [STOPPED, STOPPED]
    updates = 5 + assert_stopped_cleanly(run, after=stopped + 4)

    for folder in (run, whole):
        done = run_dst_ranks(2, *train_arguments(toy_corpus, folder, updates))
        assert done.returncode == 0, done.stderr
    assert len(losses(run)) == updates
    assert losses(run) == losses(whole)


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_complete_in_time_is_abandoned(toy_corpus: Path, tmp_path: Path) -> None:
    """Rank 1 hangs, so that rank 0 waits for it in a collective when the signal comes.

    The run folder is then moved, and one process goes on from the last complete checkpoint.
    """
    run, moved = tmp_path / "run", tmp_path / "elsewhere" / "moved"
    arguments = [*train_arguments(toy_corpus, run, MANY), "checkpoint.every_updates=5"]
    with srun([*arguments, "checkpoint.stop_seconds=2"], [*arguments, "checkpoint.stop_seconds=2"]) as ranks:
        wait_until((run / "checkpoints" / "latest").exists, running=ranks)
        ranks[1].send_signal(signal.SIGSTOP)
        ranks[0].send_signal(signal.SIGTERM)
        _, errors = finish(ranks[0])
    assert ranks[0].returncode == STOPPED
    assert "stopped without a checkpoint: 2 s were too few (checkpoint.stop_seconds)" in errors
    assert json.loads((run / "end.json").read_text())["status"] == STOPPED
    stopped = int(latest_state(run)["step"])
    updates = stopped + 5

    moved.parent.mkdir()
    run.rename(moved)
    done = run_dst_ranks(1, *train_arguments(toy_corpus, moved, updates))
    assert done.returncode == 0, done.stderr
    assert "was computed with 2 ranks" in done.stderr
    assert f"resumed at update {stopped}" in done.stderr
    assert len(losses(moved)) == updates
    for path in ("metrics.jsonl", "config.yaml", "ds_config.json", "checkpoints/latest"):
        assert str(tmp_path) not in (moved / path).read_text()
    for command in (["checkpoints", "--verify"], ["evaluate", "--beam", "1", "--follow"], ["table2"]):
        done = run_dst(*command, str(moved))
        assert done.returncode == 0, (command, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_stopped_in_its_last_evaluation_goes_on_there(toy_corpus: Path, tmp_path: Path, ranks: int) -> None:
    """The signal reaches the last rank only. The search is slow, so that the evaluation is under way."""
    run, log = tmp_path / "run", tmp_path / "run" / "logs" / "rank-00000.log"
    arguments = [*train_arguments(toy_corpus, run, 4), "validation.final_sentences=2", "validation.bleu_sentences=2"]
    slow = ["decoding.beam_size=64", "decoding.min_tokens=800", "decoding.max_extra_tokens=800"]
    with srun(*[[*arguments, *slow]] * ranks) as processes:
        wait_until(lambda: log.exists() and "final evaluation of the bundle" in log.read_text(), running=processes)
        processes[-1].send_signal(signal.SIGTERM)
        output, errors = finish_all(processes)[0]
    assert [process.returncode for process in processes] == [STOPPED] * ranks, errors
    assert "evaluating the bundle on test: 2 sentences" in errors
    assert "the run stops; the same command goes on with its last evaluations" in errors
    assert "stopped by SIGTERM" in output
    done = run_dst_ranks(ranks, *arguments)
    assert done.returncode == 0, done.stderr
    assert "test BLEU" in done.stdout
    assert [len(losses(run)), int(latest_state(run)["step"])] == [4, 4]


@pytest.mark.slow
def test_sigterm_to_the_deepspeed_launcher_is_said_in_one_line_with_one_cause(toy_corpus: Path, tmp_path: Path) -> None:
    run, printed = tmp_path / "run", tmp_path / "printed"
    command = launcher(2, "--module", "dstransformer", *train_arguments(toy_corpus, run, MANY))
    with printed.open("w") as file, started(command, stdout=file, stderr=subprocess.STDOUT) as program:
        wait_until(lambda: has_logged(run, 5), printed.read_text, running=[program])
        (node,) = psutil.Process(program.pid).children()
        program.terminate()
        finish(program)
        psutil.wait_procs([node])
    lines = printed.read_text().splitlines()
    said = [line for line in lines if "the run stops" in line or "SIGTERM" in line]
    assert said == [
        f"dst: the launcher (process {node.pid} or {program.pid}) was killed: the run stops after this update and "
        "writes a checkpoint if all its processes still run; again stops it at once"
    ]
    assert "" not in lines[lines.index(said[0]) - 1 :]
    stopped = assert_stopped_cleanly(run, after=4)
    assert f"stopped by the end of the launcher at step {stopped}; run the same command to resume" in lines
    assert any("[ERROR]" in line and "exits with return code = 143" in line for line in lines), "as the guide says"


@pytest.mark.slow
def test_ctrl_c_writes_a_checkpoint(toy_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with forked(["-m", "dstransformer", *train_arguments(toy_corpus, run, MANY)]) as program:
        wait_until(lambda: has_logged(run, 5), running=[program])
        program.send_signal(signal.SIGINT)
        output, _ = finish(program)
    assert program.returncode == STOPPED
    assert f"stopped by SIGINT at step {assert_stopped_cleanly(run, after=4)}" in output


@pytest.mark.slow
def test_nodes_without_a_shared_run_folder_are_refused(toy_corpus: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "disk-of-node-0" / "run", tmp_path / "disk-of-node-1" / "run"]
    with srun(*(train_arguments(toy_corpus, folder) for folder in folders)) as ranks:
        outputs = finish_all(ranks)
    assert [rank.returncode for rank in ranks] == [2, 2], outputs
    assert "put --run on a file system that all nodes share" in outputs[0][1]
    assert "error" not in outputs[1][1], "every rank finds out, only the first reports it"
    assert not (folders[0] / "metrics.jsonl").exists()
    assert not folders[1].exists()
