"""Builds on a Dask cluster: workers and the scheduler are killed, and the corpus is that of one process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.clusters.dask import dask_process, tls_environment
from support.data.prep import WriteText, contents, refuses, some_chunks, text_and_corpus
from support.processes.forks import environment
from support.processes.launching import finish, free_port, started, wait_until

import dstransformer
from data_prep import workers as cluster
from data_prep.cli import main

PAIRS = 60_000
LOCAL = ("--host", "127.0.0.1")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, bytes]]:
    return text_and_corpus(tmp_path_factory.mktemp("given"), PAIRS, "--near-duplicates", "0.9")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.slow
def test_a_killed_worker_costs_only_what_it_was_at(
    tmp_path: Path, given: tuple[list[str], dict[str, bytes]], stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    (options, wanted), out, file = given, tmp_path / "corpus", tmp_path / "scheduler.json"
    tls = tls_environment(tmp_path)
    stack.enter_context(dask_process("scheduler", file, *LOCAL, "--protocol", "tls", extra=tls))
    workers = [stack.enter_context(dask_process("worker", file, *LOCAL, extra=tls)) for _ in range(2)]
    command = [sys.executable, "-m", "data_prep", "build", *options, "--cluster", str(file), "--out", str(out)]
    assert "wants TLS, and Dask's configuration here names no certificate" in refuses(capsys, main(command[3:]))
    with started(command, environment(tls), stderr=-1, stdout=-1) as process:
        wait_until(lambda: some_chunks(tmp_path / "corpus.work"), running=[process])
        os.kill(workers[0], signal.SIGKILL)
        assert process.poll() is None
        errors = finish(process)[1]
    assert process.returncode == 0, errors
    assert contents(out) == wanted
    assert not (tmp_path / "corpus.work").exists()


@pytest.mark.slow
def test_a_lost_scheduler_is_said_and_finished_chunks_stay(
    tmp_path: Path, given: tuple[list[str], dict[str, bytes]], stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    (options, wanted), out, file = given, tmp_path / "corpus", tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "data_prep", "build", *options, "--cluster", str(file), "--out", str(out)]
    scheduler = stack.enter_context(dask_process("scheduler", file, *LOCAL))
    old = tmp_path / "old" / "dstransformer"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text('__version__ = "0.0.1"\n')
    with dask_process("worker", file, *LOCAL, extra={"PYTHONPATH": str(old.parent)}):
        message = refuses(capsys, main(command[3:]))
    assert f"has dstransformer 0.0.1, this command has dstransformer {dstransformer.__version__}: " in message

    stack.enter_context(dask_process("worker", file, *LOCAL))
    with started(command, stderr=-1, stdout=-1) as process:
        wait_until(lambda: some_chunks(tmp_path / "corpus.work"), running=[process])
        os.kill(scheduler, signal.SIGKILL)
        lines = finish(process)[1].splitlines()
    assert process.returncode == 1
    assert lines[-1].startswith("dst-prep: error: the scheduler at tcp://127.0.0.1:")
    assert lines[-1].endswith("is gone: start it and its workers again; the same command resumes from what is finished")
    assert not any("Traceback" in line for line in lines)
    assert some_chunks(tmp_path / "corpus.work")

    # The same command goes on, here with processes of this machine.
    assert main([*command[3 : command.index("--cluster")], "--workers", "2", "--out", str(out)]) == 0
    assert "read: finished before, reused" in capsys.readouterr().err
    assert contents(out) == wanted


def test_a_cluster_that_is_not_there_is_refused_in_one_line(
    tmp_path: Path, text: WriteText, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 0.5)
    file = tmp_path / "scheduler.json"
    command = ["build", *text(), "--out", str(tmp_path / "corpus"), "--cluster", str(file)]
    assert "cannot be read (No such file or directory): name the file that the scheduler wrote" in refuses(
        capsys, main(command)
    )
    file.write_text('{"address": 3}')
    assert "names no scheduler" in refuses(capsys, main(command))
    file.write_text(json.dumps({"address": f"tcp://127.0.0.1:{free_port()}"}))
    assert "cannot be reached: check that it runs" in refuses(capsys, main(command))
    assert "not allowed with argument" in refuses(capsys, main([*command, "--workers", str(os.cpu_count())]))
    missing = [one.replace("src.txt", "none.txt") for one in command]
    assert "none.txt" in refuses(capsys, main(missing)), "what is wrong with the text is said first"
    assert main([*command[:-2], "--workers", "1"]) == 0
    assert main(command) == 0, "nothing is left to do"
    shutil.rmtree(tmp_path / "corpus")
    assert {path.name for path in tmp_path.iterdir()} == {"text", "scheduler.json"}
