from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import mlflow
import pytest
from alembic.script import ScriptDirectory

from dstransformer.tracking.mlflow.parent_run import parent_tags
from dstransformer.tracking.mlflow.versions import (
    UnusableStoreError,
    check_database,
    describe_server,
    known_revisions,
)


def test_the_revisions_are_those_that_alembic_finds() -> None:
    scripts = ScriptDirectory(str(Path(mlflow.__file__).parent / "store" / "db_migrations"))
    known, newest = known_revisions()
    assert newest == set(scripts.get_heads())
    assert known == {script.revision for script in scripts.walk_revisions()}


@pytest.mark.parametrize(
    ("revision", "said"),
    [
        (
            "451aebb31d03",
            r"schema of an older MLflow than .*: stop all programs that use it, back it up, and run `mlflow",
        ),
        ("ffffffffffff", r"schema of a newer MLflow than .*: install that version, or name another database"),
        (None, None),
    ],
)
def test_a_database_of_another_version_is_refused(
    empty_store: Path, tmp_path: Path, revision: str | None, said: str | None
) -> None:
    store = Path(shutil.copy(empty_store, tmp_path / "mlflow.db"))
    if said is None:
        check_database(f"sqlite:///{store}")
        return
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    with pytest.raises(UnusableStoreError, match=said):
        check_database(f"sqlite:///{store}")


def test_an_empty_database_is_left_to_mlflow(tmp_path: Path) -> None:
    check_database(f"sqlite:///{tmp_path / 'new.db'}")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (version("mlflow"), None),
        ("2.9.2", "runs MLflow 2.9.2, older than the MLflow"),
        ("9.0.0", "runs MLflow 9.0.0, newer than the MLflow"),
        ("<html>", "is not an MLflow server"),
    ],
)
def test_a_server_outside_of_the_supported_versions_is_named(found: str, said: str | None) -> None:
    described = describe_server("http://me:secret@host:5000", found)
    assert (described is None) if said is None else (described is not None and said in described)
    assert "secret" not in (described or "")


def test_the_parent_is_the_run_of_mlflow_run_in_the_same_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = f"sqlite:///{tmp_path / 'mlflow.db'}"
    given = {"MLFLOW_RUN_ID": "a1", "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db"}
    assert parent_tags(absolute, given) == {"mlflow.parentRunId": "a1"}
    assert parent_tags("http://host:5000", given) == {}
    assert parent_tags("http://me:secret@host", {**given, "MLFLOW_TRACKING_URI": "http://host"}) != {}
    assert parent_tags(absolute, {"MLFLOW_TRACKING_URI": absolute}) == {}
