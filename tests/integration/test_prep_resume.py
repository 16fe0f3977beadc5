"""Builds that are interrupted, repeated, resumed, or run stage by stage or side by side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.data.prep import WriteText, build, contents, refuses, without_vocab
from support.processes.launching import HANG_SECONDS, finish, run_command, started

from data_prep.cli import main
from dstransformer.data import Corpus


def wait_for(stage: Path, process: subprocess.Popen[str]) -> None:
    while not stage.exists():
        assert process.poll() is None, "the build ended before the signal"
        time.sleep(0.002)


@pytest.mark.parametrize("stage", [
    pytest.param("read", marks=pytest.mark.extended), "clean", pytest.param("vocab", marks=pytest.mark.extended),
])  # fmt: skip
def test_a_killed_build_leaves_no_corpus_and_resumes(tmp_path: Path, text: WriteText, stage: str) -> None:
    options, out, work = text(60_000), tmp_path / "corpus", tmp_path / "corpus.work"
    command = [sys.executable, "-m", "data_prep", "build", *options, "--workers", "2", "--out", str(out)]
    with started(command, stderr=subprocess.DEVNULL) as process:
        wait_for(work / stage, process)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert psutil.wait_procs(children, timeout=HANG_SECONDS)[1] == []
    assert not out.exists()
    resumed = run_command(command)
    assert resumed.returncode == 0, resumed.stderr
    assert f"{stage}: finished before, reused" in resumed.stderr
    assert build(*options, "--out", tmp_path / "uninterrupted") == 0
    assert contents(out) == contents(tmp_path / "uninterrupted")
    assert {path.name for path in tmp_path.iterdir()} == {"text", "corpus", "uninterrupted"}


def test_a_signal_to_all_processes_keeps_finished_stages(tmp_path: Path, text: WriteText) -> None:
    options, out, work = text(60_000), tmp_path / "corpus", tmp_path / "corpus.work"
    command = [sys.executable, "-m", "data_prep", "build", *options, "--workers", "2", "--out", str(out)]
    with started(command, stderr=subprocess.PIPE, start_new_session=True) as process:
        wait_for(work / "vocab", process)
        os.killpg(process.pid, signal.SIGINT)
        lines = finish(process)[1].splitlines()
    assert process.returncode == 130
    assert lines[-1] == "dst-prep: interrupted; the same command resumes from what is finished"
    assert not any("Traceback" in line for line in lines)
    assert not out.exists()
    # Finished chunks of the stage under way, if there are any, stay too.
    assert {path.name for path in work.iterdir()} - {"encode.partial"} == {"read", "clean", "vocab", "lock"}
    assert {path.name for path in tmp_path.iterdir()} == {"text", "corpus.work"}


def test_changed_inputs_start_over(tmp_path: Path, text: WriteText) -> None:
    options, out, work = text(), tmp_path / "corpus", tmp_path / "corpus.work"
    assert build(*options, "--vocab-size", "90000", "--out", out) == 2
    assert {path.name for path in work.iterdir()} == {"read", "clean", "lock"}
    text(700)
    assert build(*options, "--out", out) == 0
    assert len(Corpus.open(out).split("train")) == 700
    assert not work.exists()


def test_stages_out_of_order_are_refused(tmp_path: Path, text: WriteText, capsys: pytest.CaptureFixture[str]) -> None:
    work = ["--work", str(tmp_path / "work")]
    assert main(["read", *work, *without_vocab(text())]) == main(["clean", *work]) == 0
    assert main(["vocab", *work, "--vocab-size", "400"]) == 0
    assert main(["clean", *work, "--no-dedup"]) == 0
    message = refuses(capsys, main(["encode", *work, "--out", str(tmp_path / "corpus")]))
    assert "the stage 'vocab'" in message
    assert "was made from other text or options" in message
    assert not (tmp_path / "corpus").exists()


def test_an_existing_corpus_is_replaced_only_when_asked(
    tmp_path: Path, text: WriteText, capsys: pytest.CaptureFixture[str]
) -> None:
    out, options = tmp_path / "corpus", text()
    assert build(*options, "--out", out) == 0
    made = out.stat().st_ino
    assert build(*options, "--out", out) == 0
    assert "is already built from these inputs" in capsys.readouterr().err
    assert "--overwrite" in refuses(capsys, build(*options, "--max-words", "9", "--out", out))
    assert out.stat().st_ino == made
    assert build(*options, "--max-words", "9", "--out", out, "--overwrite") == 0
    assert out.stat().st_ino != made
    shard = out / "train" / "data-00000-of-00001.arrow"
    shard.write_bytes(shard.read_bytes()[:-9] + b"x" + shard.read_bytes()[-8:])
    assert "is damaged" in refuses(capsys, build(*options, "--max-words", "9", "--out", out))
    assert "is damaged" in refuses(capsys, main(["verify", str(out)]))
    assert build(*options, "--max-words", "9", "--out", out, "--overwrite") == 0
    assert main(["verify", str(out)]) == 0


def test_concurrent_builds_cannot_share_an_output_or_work_folder(
    tmp_path: Path, text: WriteText, capsys: pytest.CaptureFixture[str]
) -> None:
    options, out = text(60_000), tmp_path / "corpus"
    command = [sys.executable, "-m", "data_prep", "build", *options, "--workers", "2", "--out", str(out)]
    with started(command, stderr=subprocess.DEVNULL) as first:
        wait_for(tmp_path / "corpus.work" / "read", first)
        message = refuses(capsys, build(*options, "--out", out, "--work", tmp_path / "other"))
        assert f"another build is writing {out}" in message
        message = refuses(capsys, build(*options, "--out", tmp_path / "second", "--work", tmp_path / "corpus.work"))
        assert f"{tmp_path / 'corpus.work'}" in message
        assert first.wait() == 0
    assert {path.name for path in tmp_path.iterdir()} == {"text", "corpus"}
    assert len(Corpus.open(out).split("train")) == 60_000
