"""MLflow's SQLite file is created whole, and a database of another schema is left alone."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from contextlib import closing
from multiprocessing.context import ForkServerContext
from pathlib import Path

import mlflow
import pytest
from alembic.script import ScriptDirectory
from mlflow.tracking import MlflowClient
from support.processes.forks import fork_server
from support.processes.launching import LIMIT

from dstransformer.tracking.mlflow.location import UnusableStoreError, check_database, create_sqlite, known_revisions


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Starts processes in which MLflow is already loaded."""
    return fork_server()


def create_and_use(path: Path, experiment: str) -> None:
    create_sqlite(path)
    client = MlflowClient(f"sqlite:///{path}")
    client.create_run(client.create_experiment(experiment))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".mlflow.db.lock")


def test_four_processes_at_once_make_one_store(processes: ForkServerContext, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "mlflow.db"
    started = [processes.Process(target=create_and_use, args=(path, f"experiment {number}")) for number in range(4)]
    for process in started:
        process.start()
    for process in started:
        process.join(LIMIT)
        assert process.exitcode == 0
    assert names(path.parent) == ["mlflow.db"]
    found = {experiment.name for experiment in MlflowClient(f"sqlite:///{path}").search_experiments()}
    assert found == {"Default", *(f"experiment {number}" for number in range(4))}
    before = path.stat()
    create_sqlite(path)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "it is left alone"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (None, None),
        ("UPDATE alembic_version SET version_num = '451aebb31d03'", r"older MLflow than .*`mlflow db upgrade sqlite:"),
        ("UPDATE alembic_version SET version_num = 'ffffffffffff'", r"newer MLflow than .*: install that version"),
        ("DROP TABLE alembic_version", "another program's database"),
    ],
)
def test_a_database_of_another_schema_is_refused(
    empty_store: Path, tmp_path: Path, statement: str | None, said: str | None
) -> None:
    store = Path(shutil.copy(empty_store, tmp_path / "mlflow.db"))
    if statement is None or said is None:
        check_database(f"sqlite:///{store}")
        return
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(statement)
    before = store.read_bytes()
    with pytest.raises(UnusableStoreError, match=said):
        check_database(f"sqlite:///{store}")
    assert store.read_bytes() == before


def test_the_revisions_are_those_that_alembic_finds() -> None:
    scripts = ScriptDirectory(str(Path(mlflow.__file__).parent / "store" / "db_migrations"))
    known, newest = known_revisions()
    assert newest == set(scripts.get_heads())
    assert known == {script.revision for script in scripts.walk_revisions()}


def test_a_full_disk_leaves_no_partial_store(small_disk: Path) -> None:
    path = small_disk / "mlflow.db"
    with pytest.raises(Exception, match="disk is full"):
        create_sqlite(path)
    assert names(small_disk) == []
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    create_and_use(path, "translation")
    assert names(small_disk) == ["mlflow.db"]
