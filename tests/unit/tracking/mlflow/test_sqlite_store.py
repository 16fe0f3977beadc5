from __future__ import annotations

import logging
import os
import random
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from support.processes.forks import fork_server
from support.processes.launching import LIMIT

from dstransformer.tracking.mlflow.location import sqlite_path
from dstransformer.tracking.mlflow.sqlite_store import UnusableStoreError, find_problem, prepare_store


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Starts processes in which MLflow is already loaded."""
    return fork_server()


@pytest.fixture
def store(empty_store: Path, tmp_path: Path) -> Path:
    """A copy of a valid store, for tests to break."""
    return Path(shutil.copy(empty_store, tmp_path / "mlflow.db"))


def prepare_and_use(path: Path, experiment: str) -> None:
    prepare_store(path, settle_seconds=0.0)
    client = MlflowClient(f"sqlite:///{path}")
    client.create_run(client.create_experiment(experiment))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".mlflow.db.lock")


def run_sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def test_four_processes_at_once_make_one_store(processes: ForkServerContext, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "mlflow.db"
    started = [processes.Process(target=prepare_and_use, args=(path, f"experiment {number}")) for number in range(4)]
    for process in started:
        process.start()
    for process in started:
        process.join(LIMIT)
        assert process.exitcode == 0
    assert names(path.parent) == ["mlflow.db"]
    found = {experiment.name for experiment in MlflowClient(f"sqlite:///{path}").search_experiments()}
    assert found == {"Default", *(f"experiment {number}" for number in range(4))}


@pytest.mark.slow
@pytest.mark.extended
def test_a_process_killed_at_any_moment_leaves_no_partial_store(
    processes: ForkServerContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mlflow.db"
    moments = random.Random(13)
    for _ in range(6):
        process = processes.Process(target=prepare_store, args=(path,))
        process.start()
        time.sleep(moments.uniform(0.1, 2.0))
        process.kill()
        process.join()
        if path.exists():
            prepare_store(path, settle_seconds=0.0)
            path.unlink()
    prepare_and_use(path, "translation")
    assert names(tmp_path) == ["mlflow.db"]
    assert caplog.text == ""


def test_a_valid_store_is_left_unchanged(store: Path) -> None:
    before = store.stat()
    prepare_store(store)
    after = store.stat()  # reading it may change the time of access
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    assert names(store.parent) == ["mlflow.db"]


def break_store(store: Path, fault: str) -> None:
    if fault == "interrupted migration":
        run_sql(store, "CREATE TABLE _alembic_tmp_tags (key TEXT)", "UPDATE alembic_version SET version_num = 'x'")
    elif fault == "first migration":
        run_sql(store, "DELETE FROM experiments", "UPDATE alembic_version SET version_num = '451aebb31d03'")
    elif fault == "truncated":
        os.truncate(store, store.stat().st_size // 2)
    elif fault == "overwritten":
        store.write_bytes(b"not a database" * 1000)
    else:
        os.truncate(store, 0)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("interrupted migration", "a migration of its schema was interrupted"),
        ("first migration", "its creation was interrupted"),
        ("truncated", "database disk image is malformed"),
        ("overwritten", "file is not a database"),
        ("empty", "it is empty"),
    ],
)
def test_a_broken_store_is_recognised(store: Path, fault: str, said: str) -> None:
    break_store(store, fault)
    assert find_problem(store) == said


@pytest.mark.parametrize("fault", ["interrupted migration", "truncated"])
def test_a_broken_store_is_moved_aside_and_replaced(store: Path, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    break_store(store, fault)
    broken = store.read_bytes()
    prepare_and_use(store, "translation")
    (kept,) = store.parent.glob("mlflow.db.broken-*")
    assert kept.read_bytes() == broken
    (warning,) = caplog.messages
    assert warning.startswith(f"the MLflow store {store} is broken (")
    assert str(kept) in warning


def test_it_waits_for_a_store_that_another_program_creates(store: Path, processes: ForkServerContext) -> None:
    whole = store.read_bytes()
    os.truncate(store, 0)
    process = processes.Process(target=prepare_store, args=(store,), kwargs={"settle_seconds": LIMIT})
    process.start()
    time.sleep(1.0)
    store.write_bytes(whole)
    process.join(LIMIT)
    assert process.exitcode == 0
    assert names(store.parent) == ["mlflow.db"]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE alembic_version SET version_num = '451aebb31d03'", r"older MLflow.*`mlflow db upgrade sqlite:////"),
        ("UPDATE alembic_version SET version_num = 'ffffffffffff'", "newer MLflow than"),
    ],
)
def test_a_store_of_another_version_is_left_alone(store: Path, statement: str, said: str) -> None:
    run_sql(store, statement)
    before = store.read_bytes()
    with pytest.raises(UnusableStoreError, match=said):
        prepare_store(store)
    assert store.read_bytes() == before
    assert names(store.parent) == ["mlflow.db"]


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    run_sql(path, "CREATE TABLE recipes (name TEXT)")
    with pytest.raises(UnusableStoreError, match="another program's database"):
        prepare_store(path)
    assert names(tmp_path) == ["mlflow.db"]


def test_a_full_disk_leaves_no_partial_store(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = small_disk / "mlflow.db"
    with pytest.raises(Exception, match="disk is full"):
        prepare_store(path)
    assert names(small_disk) == []
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    prepare_and_use(path, "translation")
    assert names(small_disk) == ["mlflow.db"]
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sqlite:////data/runs/mlflow.db", Path("/data/runs/mlflow.db")),
        ("sqlite+pysqlite:////data/a.db?timeout=3", Path("/data/a.db")),
        ("sqlite:///mlflow.db", Path("mlflow.db").absolute()),
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
        ("http://host:5000", None),
        ("postgresql:///name", None),
    ],
)
def test_the_file_of_a_sqlite_address(uri: str, path: Path | None) -> None:
    assert sqlite_path(uri) == path


@pytest.fixture(autouse=True)
def capture_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
