"""Faults planted in runs, stores and machines, each of which ``dst doctor`` must find, and say what to do."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import sys
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.processes.forks import environment
from support.processes.launching import finish, free_port, run_command, run_dst, wait_until
from support.processes.ranks import srun
from support.services.mlflow_runs import make_tracker, pending
from support.services.mlflow_server import make_start
from support.training.runs import TINY

from dstransformer.io.products import write_marker
from dstransformer.tracking.events import RunEnd

Findings = dict[str, dict[str, Any]]


def train_arguments(corpus: Path, run: Path, *overrides: str) -> list[str]:
    return ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--set", *TINY, *overrides]


def doctor(*arguments: str | Path, cwd: Path | None = None, **extra: str) -> tuple[int, Findings]:
    """The exit status of the command, and its findings by name. It prints nothing else."""
    done = run_dst("doctor", *map(str, arguments), "--json", cwd=cwd, extra=extra)
    assert done.stderr == ""
    return done.returncode, {finding["name"]: finding for finding in json.loads(done.stdout)}


def faults(found: Findings) -> list[str]:
    return [name for name, finding in found.items() if finding["level"] == "FAULT"]


def assert_fault(outcome: tuple[int, Findings], name: str, *parts: str) -> None:
    """Check that exactly this fault was found, and that its line has these parts."""
    status, found = outcome
    assert status == 1
    assert faults(found) == [name], found
    line = f"{found[name]['text']}: {found[name]['advice']}"
    assert [part for part in parts if part not in line] == [], line


@pytest.fixture
def run(plain_copy: Path) -> Path:
    """A run and what MLflow has of it, for a fault."""
    return plain_copy


def test_a_healthy_run_has_no_fault(plain_run: Path) -> None:
    status, found = doctor(plain_run)
    assert (status, faults(found)) == (0, [])
    assert list(found) == [
        "run", "end", "updates", "numbers", "checkpoint", "disk", "mlflow store", "records", "warnings",
    ]  # fmt: skip
    assert found["end"]["text"].endswith(", finished")
    assert found["updates"]["text"].startswith("12 of 12, loss ")
    assert found["checkpoint"]["text"].startswith("step-00000012 is intact, ")


def test_a_run_is_read_in_ten_lines_and_without_pytorch(plain_run: Path) -> None:
    program = "import sys; from dstransformer.cli import main; main(); sys.exit('torch' in sys.modules)"
    done = run_command([sys.executable, "-c", program, "doctor", str(plain_run)])
    assert done.returncode == 0, done.stderr
    assert 5 < done.stdout.count("\n") <= 10
    assert all(line.startswith(("ok     ", "note   ")) for line in done.stdout.splitlines())


def test_a_healthy_machine_has_no_fault(plain_run: Path) -> None:
    status, found = doctor("--runs", plain_run.parent, MASTER_PORT=str(free_port()))
    assert (status, faults(found)) == (0, []), found
    assert found["torch"]["level"] == found["deepspeed"]["level"] == "ok"
    assert found["records"]["text"] == f"none pending in {plain_run.parent}"
    assert {"python", "mlflow", "sentencepiece", "devices", "compiler", "disk", "/dev/shm", "port", "clock"} < set(
        found
    )


@pytest.mark.slow
def test_a_killed_run_is_found_and_so_is_one_that_trains(toy_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = train_arguments(toy_corpus, run, "training.max_updates=100000", "checkpoint.every_updates=0")
    with srun(arguments) as (process,):
        wait_until((run / "metrics.jsonl").exists, running=[process])
        status, found = doctor(run)
        assert (status, faults(found)) == (0, []), found
        assert f"process {process.pid} on " in found["end"]["text"]
        process.kill()
        process.wait()
    assert_fault(doctor(run), "end", "its process ended without a word", "kill -9", ": update", "run the same command")


@pytest.mark.slow
def test_a_lost_rank_is_found(toy_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = train_arguments(toy_corpus, run, "training.max_updates=100000", "checkpoint.every_updates=0")
    with srun(arguments, arguments) as ranks:
        wait_until((run / "metrics.jsonl").exists, running=ranks)
        ranks[1].kill()
        finish(ranks[0])
    assert ranks[0].returncode == 1
    outcome = doctor(run)
    assert_fault(outcome, "end", "rank 1 on ", "has died or stopped; ", "dmesg -T", "run the same command again")
    assert "2 processes on " in outcome[1]["run"]["text"]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_found(toy_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    limits = ["training.max_updates=40", "schedule.scale=1e30", "training.skip_budget=2", "training.max_rollbacks=0"]
    done = run_dst(*train_arguments(toy_corpus, run, *limits))
    assert done.returncode == 1, done.stderr
    status, found = doctor(run)
    assert (status, faults(found)) == (1, ["end", "numbers"])
    assert "training diverged: the losses or gradients of 3 updates in a row" in found["end"]["text"]
    assert "3 updates with a NaN or infinite loss or gradient, 0 rollbacks; the last at" in found["numbers"]["text"]
    assert "schedule.scale" in found["numbers"]["advice"]


MEMORY_PROGRAM = """
import os, platform, sys
from pathlib import Path
import torch
from dstransformer.distributed.launcher import Processes
from dstransformer.distributed.supervision.rank_log import RankLog, RankProcess, record_start
with RankLog(Processes(0, 0, 1)) as log:
    record_start(Path(sys.argv[1]), [RankProcess(host=platform.node(), process=os.getpid())], log.launcher)
    log.open(Path(sys.argv[1]))
    log.enter(7, "update")
    try:
        torch.ones(2**45)
    except RuntimeError as error:
        log.record_error(error)
"""


def test_a_process_without_memory_is_found(run: Path) -> None:
    """The record is the project's, the error PyTorch's."""
    assert run_command([sys.executable, "-c", MEMORY_PROGRAM, str(run)]).returncode == 0
    assert_fault(doctor(run), "end", "allocate memory", "--ds zero2", "training.activation_checkpointing=true")


def test_a_truncated_checkpoint_is_found(run: Path) -> None:
    weights = run / "checkpoints" / "step-00000012" / "bundle" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    said = f"{weights} is missing or damaged; step-00000009 is intact"
    assert_fault(doctor(run), "checkpoint", said, "the same command resumes from step-00000009")
    for name in ("step-00000003", "step-00000006", "step-00000009"):
        (run / "checkpoints" / name / "manifest.json").write_text("{}")
    assert_fault(doctor(run), "checkpoint", "all 4 are damaged", "restore one from a copy")


def test_files_that_end_in_the_middle_are_found(run: Path) -> None:
    for name, text in (("config.yaml", "model: ["), ("end.json", "1"), ("metrics.jsonl", '{"kind": 1}\n')):
        (run / name).write_text(text)
    status, found = doctor(run)
    assert status == 1
    assert {"end", "files"} >= set(faults(found))
    assert all(f"{run / name}" in found["files"]["text"] for name in ("config.yaml", "end.json", "metrics.jsonl"))
    (run / "tracking.json").write_text("{")
    assert "mlflow store" in faults(doctor(run)[1])


def test_pipes_devices_and_folders_in_place_of_files_are_found(run: Path) -> None:
    names = ["end.json", "metrics.jsonl", "tracking-outbox.jsonl", "logs/rank-00000.log", "config.yaml"]
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir):
        for path in (run / name for name in names):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            make(path)
        status, found = doctor(run)
        assert (status, faults(found)) == (1, ["end", "records", "files"])
        assert "the check itself failed" not in json.dumps(found)


def set_schema(store: Path, revision: str) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))


@pytest.mark.parametrize(
    ("revision", "parts"),
    [
        ("451aebb31d03", ("older MLflow than 3.", "stop all programs", "back it up", "`mlflow db upgrade sqlite:////")),
        ("ffffffffffff", ("newer MLflow than 3.", "install that version", "guide: tracking")),
    ],
)
def test_a_store_of_another_schema_is_found(run: Path, revision: str, parts: tuple[str, ...]) -> None:
    set_schema(run.parent / "mlflow.db", revision)
    assert_fault(doctor(run), "mlflow store", *parts)
    assert_fault(doctor("--runs", run.parent, MASTER_PORT=str(free_port())), "mlflow store", *parts)


def test_records_that_wait_are_found_and_stay_as_they_are(run_folder: Path) -> None:
    tracker = make_tracker(run_folder, "http://127.0.0.1:9")  # nobody listens
    tracker.emit(make_start())
    tracker.emit(RunEnd("finished"))
    write_marker(run_folder, "run")
    (run_folder / "config.yaml").write_text("{}")
    before = {path: path.stat().st_mtime_ns for path in run_folder.iterdir()}
    _, found = doctor(run_folder)
    assert {"mlflow store", "records"} <= set(faults(found))
    assert "http://127.0.0.1:9 cannot be used" in found["mlflow store"]["text"]
    assert found["records"]["text"].endswith(" records not in MLflow")
    assert found["records"]["advice"] == f"dst track {run_folder}"
    outcome = doctor("--runs", run_folder.parent, MASTER_PORT=str(free_port()))
    assert_fault(outcome, "records", " of 1 run in ", f"once the store answers: dst track {run_folder}")
    assert {path: path.stat().st_mtime_ns for path in run_folder.iterdir()} == before


def test_a_run_that_could_not_report_its_end_is_told_from_one_that_did(run_folder: Path, store: str) -> None:
    tracker = make_tracker(run_folder, store)
    tracker.emit(make_start())
    wait_until(lambda: pending(run_folder) == 0)
    write_marker(run_folder, "run")
    _, found = doctor(run_folder)
    assert found["records"]["text"] == "MLflow takes the run for RUNNING"
    assert found["records"]["advice"] == f"dst track {run_folder} marks it as FAILED"
    tracker.emit(RunEnd("finished"))
    assert doctor(run_folder)[1]["records"]["text"] == "MLflow has all"


def test_a_port_that_is_taken_is_found(plain_run: Path) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        port = listener.getsockname()[1]
        outcome = doctor("--runs", plain_run.parent, MASTER_PORT=str(port))
    assert_fault(
        outcome, "port", f"{port}, where the processes of a run join, is in use", "--master_port 29", "MASTER_PORT="
    )
    assert f"by process {os.getpid()} (" in outcome[1]["port"]["text"]


def test_a_missing_and_an_unfit_package_are_found(tmp_path: Path, plain_run: Path) -> None:
    """Metadata that Python finds first, as of a package that was installed into the wrong place."""
    folder = tmp_path / "site" / "deepspeed-0.14.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.14.0\n")
    path = os.pathsep.join([str(folder.parent), environment()["PYTHONPATH"]])
    variables = environment({"MASTER_PORT": str(free_port())}) | {"PYTHONPATH": path}
    command = [sys.executable, "-m", "dstransformer", "doctor", "--json", "--runs", str(plain_run.parent)]
    done = run_command(command, env=variables)
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert "train" in found["extras"]["text"].partition("; not installed: ")[2]
    assert_fault((done.returncode, found), "deepspeed", "0.14.0, not >=0.19.8,<0.20", "pip install 'deepspeed")


def test_a_full_disk_is_found(small_disk: Path) -> None:
    outcome = doctor("--runs", small_disk / "runs", MASTER_PORT=str(free_port()))
    assert_fault(outcome, "disk", f"{small_disk} cannot be written: No space left on device", "make room")
    assert list(small_disk.iterdir()) == []


def test_little_shared_memory_is_found(plain_run: Path) -> None:
    """In a mount namespace of its own, where /dev/shm is a tmpfs of 1 MiB."""
    # The folder of runs may lie in /dev/shm, so it is mounted elsewhere before.
    mount = f"mount --bind {plain_run.parent} /mnt && mount -t tmpfs -o size=1m tmpfs /dev/shm"
    if run_command(["unshare", "--mount", "sh", "-c", mount]).returncode != 0:
        pytest.skip("mounting needs root")
    program = f"{mount} && exec {sys.executable} -m dstransformer doctor --json --runs /mnt"
    variables = environment({"MASTER_PORT": str(free_port())})
    done = run_command(["unshare", "--mount", "sh", "-c", program], env=variables)
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert_fault((done.returncode, found), "/dev/shm", "1 of 1 MiB free", "docker run --shm-size=8g")


@pytest.mark.parametrize(("status", "advice"), [
    (401, "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, of one who may use it"),
    (404, "correct the address, at which no MLflow answers"), (503, "read its log"),
])  # fmt: skip
def test_a_server_that_refuses_is_not_called_down(status: int, advice: str, tmp_path: Path) -> None:
    class Refusal(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(status)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusal) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        outcome = doctor("--runs", tmp_path, MASTER_PORT=str(free_port()), MLFLOW_TRACKING_URI=address)
        server.shutdown()
        thread.join()
    said = f"{address} cannot be used: it answers with status {status}: {advice}; runs train on"
    assert_fault(outcome, "mlflow store", said)


def test_a_clock_of_long_ago_is_found() -> None:
    from dstransformer.extras.doctor.machine import check_clock

    finding = check_clock(86400.0)
    assert (finding.level, finding.advice) == ("FAULT", "set it by NTP")
    finding = check_clock(time.time())
    assert finding.level == "ok"
