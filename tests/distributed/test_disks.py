"""Disks that fail while two ranks train: the run says so, goes on, and saves when it can."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.faults.disk import mounted
from support.processes.forks import Fork
from support.processes.launching import wait_until
from support.processes.ranks import finish_all, run_dst_ranks, srun
from support.training.runs import TINY, latest_state, losses, records

from dstransformer.tracking.metrics_log import is_finished
from dstransformer.training.checkpoints.format import read_checkpoint, verify_checkpoint

UNSAVED = "could not be saved"


def train_arguments(corpus: Path, run: Path, *overrides: str) -> list[str]:
    options = ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--ds", "zero2", "fp32", "--set", *TINY]
    return [*options, "checkpoint.every_updates=4", "checkpoint.retry_seconds=0.2", *overrides]


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True)


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB, which can be unmounted and mounted again from ``disk-itself``."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with mounted(tmp_path / "disk-itself", "size=8m") as itself:
        mount("--bind", itself, folder)
        yield folder
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    ballast = disk / "ballast"

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    with pytest.raises(OSError, match="No space left"):
        fill()
    yield
    ballast.unlink()


def remount_read_only(folder: Path) -> bool:
    """Make a mount read-only. Returns False if it was refused, as while a file is open for writing."""
    return subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=False, capture_output=True).returncode == 0


@contextmanager
def read_only(checkpoints: Path) -> Iterator[None]:
    mount("--bind", checkpoints, checkpoints)
    wait_until(lambda: remount_read_only(checkpoints))
    yield
    unmount(checkpoints)


@contextmanager
def vanished(disk: Path) -> Iterator[None]:
    unmount(disk)
    yield
    assert list(disk.iterdir()) == [], "something was written where the disk had been"
    mount("--bind", disk.with_name("disk-itself"), disk)


@contextmanager
def refusing_writes_of(rank: Fork) -> Iterator[None]:
    before = resource.prlimit(rank.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(rank.pid, resource.RLIMIT_FSIZE, (0, before[1]))
    yield
    resource.prlimit(rank.pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
def test_a_run_outlives_every_fault_of_its_disks(toy_corpus: Path, disk: Path) -> None:
    """Full, read-only, gone, and refusing one rank alone: one after the other, in one run."""
    run = disk / "run"
    arguments = train_arguments(toy_corpus, run, "training.max_updates=100000")
    with srun(arguments, arguments) as ranks:

        def said() -> str:
            return ranks[0].outputs[1].read_text()

        def await_refusal() -> None:
            before = said().count(UNSAVED)
            wait_until(lambda: said().count(UNSAVED) > before, said, running=ranks)

        def await_checkpoint() -> None:
            # The newest may have been completed before the fault, so this waits for two.
            for _ in range(2):
                before = latest_state(run)["step"]
                wait_until(lambda before=before: latest_state(run)["step"] > before, said, running=ranks)  # type: ignore[misc]

        wait_until((run / "checkpoints" / "latest").exists, said, running=ranks)
        faults = [
            lambda: full(disk),
            lambda: read_only(run / "checkpoints"),
            lambda: vanished(disk),
            lambda: refusing_writes_of(ranks[1]),
        ]
        for fault in faults:
            with fault():
                await_refusal()
            await_checkpoint()
        ranks[0].send_signal(signal.SIGTERM)
        outputs = finish_all(ranks)
    assert [rank.returncode for rank in ranks] == [143, 143], outputs
    errors = outputs[0][1]
    assert "Traceback" not in errors + outputs[1][1]
    for reason in (
        "No space left on device; make room;", "Read-only file system", "is no longer the run folder",
        "rank 1 on", "metrics.jsonl is written again",
    ):  # fmt: skip
        assert reason in errors, (reason, errors)
    step = latest_state(run)["step"]
    assert len(losses(run)) == step, "every line of the metrics is there, once"
    assert len(records(run, "unsaved")) >= len(faults)
    verify_checkpoint(read_checkpoint(run / "checkpoints" / f"step-{step:08d}"))


@pytest.mark.slow
def test_the_end_of_a_run_waits_for_a_full_disk(toy_corpus: Path, disk: Path) -> None:
    run = disk / "run"
    overrides = ("training.max_updates=12", "checkpoint.every_updates=0", "checkpoint.retry_seconds=5")
    arguments = train_arguments(toy_corpus, run, *overrides)
    with srun(arguments, arguments) as ranks:
        wait_until((run / "ds_config.json").exists, running=ranks)
        with full(disk):
            wait_until(
                lambda: "the last checkpoint could not be saved" in ranks[0].outputs[1].read_text(), running=ranks
            )
        outputs = finish_all(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert (run / "bundle" / "model.safetensors").exists()
    assert [(line["step"], line["what"]) for line in records(run, "unsaved")][-1] == (12, "the last checkpoint")
    assert len(losses(run)) == 12
    assert json.loads((run / "end.json").read_text())["status"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("heals", [True, False])
def test_the_end_of_a_run_waits_for_the_disk_of_its_metrics(toy_corpus: Path, disk: Path, *, heals: bool) -> None:
    run = disk / "run"
    seconds = 3 if heals else 0.2
    overrides = ("training.max_updates=12", "checkpoint.every_updates=6", f"checkpoint.retry_seconds={seconds}")
    with srun(*[train_arguments(toy_corpus, run, *overrides)] * 2) as ranks:
        wait_until((run / "checkpoints" / "latest").exists, running=ranks)
        with read_only(run / "metrics.jsonl"):
            said = "the last lines of metrics.jsonl could not be saved"
            wait_until(lambda: said in ranks[0].outputs[1].read_text(), running=ranks)
            if not heals:
                outputs = finish_all(ranks)
        if heals:
            outputs = finish_all(ranks)
    assert [rank.returncode for rank in ranks] == ([0, 0] if heals else [1, 1]), outputs
    assert is_finished(run) == heals
    assert json.loads((run / "end.json").read_text())["status"] == (0 if heals else 1)
    if heals:
        assert len(losses(run)) == 12
    else:
        assert "dst: error: the last lines of metrics.jsonl could not be saved, in 5 tries" in outputs[0][1]
        again = run_dst_ranks(2, *train_arguments(toy_corpus, run, *overrides))
        assert again.returncode == 0, again.stderr
        assert is_finished(run), "the same command completes it"


@pytest.mark.slow
def test_a_run_that_cannot_save_its_end_keeps_what_is_complete_and_fails(toy_corpus: Path, disk: Path) -> None:
    run = disk / "run"
    overrides = ("training.max_updates=60", "checkpoint.every_updates=2", "checkpoint.keep_last=60")
    done = run_dst_ranks(2, *train_arguments(toy_corpus, run, *overrides))
    assert done.returncode == 1, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("dst: error:"))
    assert "the last checkpoint could not be saved, in 5 tries: cannot write" in line
    assert "No space left on device; make room" in line
    assert "Traceback" not in done.stderr
    complete = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    assert complete
    assert (run / "checkpoints" / "latest").read_text().strip() == complete[-1]
    for name in complete:
        verify_checkpoint(read_checkpoint(run / "checkpoints" / name))
    assert not list((run / "checkpoints").glob(".partial*"))
