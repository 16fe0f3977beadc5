from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import make_url

from dstransformer.errors import ConfigError, DataError
from dstransformer.tracking.mlflow.location import (
    TrackingState,
    check_secrets,
    is_same_store,
    resolve_tracking_uri,
    sqlite_address,
    sqlite_path,
)
from dstransformer.tracking.mlflow.parent_run import parent_tags

ADDRESS = "https://me:s3cret@host:5000/x"
MASKED = "https://me:***@host:5000/x"


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("URI", "USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    TrackingState(ADDRESS, "translation", "0123").save(tmp_path)
    return tmp_path


def address(folder: Path) -> str:
    state = TrackingState.load(folder)
    assert state is not None
    assert (state.experiment, state.run_id) == ("translation", "0123")
    return state.tracking_uri


def test_a_password_is_not_stored_and_asked_for(stored: Path) -> None:
    assert "s3cret" not in (stored / "tracking.json").read_text()
    assert address(stored) == MASKED
    with pytest.raises(ConfigError, match=r"https://me:\*\*\*@host:5000/x"):
        check_secrets(MASKED)
    check_secrets("https://host")


def test_the_whole_address_comes_from_the_environment(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:changed@host:5000/x")
    assert address(stored) == "https://me:changed@host:5000/x"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:s3cret@other:5000/x")
    assert address(stored) == MASKED


@pytest.mark.parametrize("name", ["PASSWORD", "TOKEN"])
def test_mlflow_finds_user_and_password_by_itself(stored: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", "s3cret")
    assert address(stored) == "https://host:5000/x"
    TrackingState("postgresql://me:s3cret@host/db", "translation", "0123").save(stored)
    assert address(stored) == "postgresql://me:***@host/db"


def test_stores_are_the_same_whoever_uses_them() -> None:
    assert is_same_store(ADDRESS, "https://host:5000/x")
    assert is_same_store(ADDRESS, MASKED)
    assert not is_same_store(ADDRESS, "https://host:5001/x")
    assert not is_same_store("sqlite:////a@b/c.db", "sqlite:////c.db")


def test_a_run_id_that_is_no_text_is_damage(stored: Path) -> None:
    (stored / "tracking.json").write_text('{"tracking_uri": "http://host", "experiment": "e", "run_id": [1]}')
    with pytest.raises(DataError, match="run_id"):
        TrackingState.load(stored)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sqlite:////data/runs/mlflow.db", Path("/data/runs/mlflow.db")),
        ("sqlite+pysqlite:////data/a.db?timeout=3", Path("/data/a.db")),
        ("sqlite:///mlflow.db", Path("mlflow.db").absolute()),
        ("sqlite:////data/50%/a%20b.db", Path("/data/50%/a b.db")),
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
        ("http://host:5000", None),
        ("postgresql:///name", None),
    ],
)
def test_the_file_of_a_sqlite_address(uri: str, path: Path | None) -> None:
    assert sqlite_path(uri) == path


@pytest.mark.parametrize("name", ["q?x", "p%41", "100%", "a&token=1", "new\nline", "h#;'\" [a] ü"])
def test_the_address_of_a_file_is_sqlalchemys(tmp_path: Path, name: str) -> None:
    path, run = tmp_path / name / "mlflow.db", tmp_path / name / "run"
    run.mkdir(parents=True)
    address = sqlite_address(path)
    assert (sqlite_path(address), make_url(address).database, make_url(address).query) == (path, str(path), {})
    state = TrackingState(resolve_tracking_uri(None, run), "translation")
    state.save(run)
    assert (state, TrackingState.load(run)) == (TrackingState(address, "translation"),) * 2


def test_a_store_whose_file_was_named_unquoted_is_the_same() -> None:
    assert is_same_store("sqlite:////runs/a&b.db", sqlite_address(Path("/runs/a&b.db")))
    assert not is_same_store("sqlite:////runs/a&b.db", "sqlite:////runs/c.db")


def test_the_parent_is_the_run_of_mlflow_run_in_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = f"sqlite:///{tmp_path / 'mlflow.db'}"
    given = {"MLFLOW_RUN_ID": "a1", "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db"}
    assert parent_tags(absolute, given) == {"mlflow.parentRunId": "a1"}
    assert caplog.messages == []
    assert parent_tags("http://me:secret@host:5000", given) == parent_tags(absolute, {"MLFLOW_RUN_ID": "a1"}) == {}
    assert [line.rpartition(" ")[2] for line in caplog.messages] == ["http://me:***@host:5000", absolute]
    assert caplog.messages[0].startswith("MLFLOW_RUN_ID is not used: MLFLOW_TRACKING_URI does not name ")
    assert parent_tags("http://me:secret@host", {**given, "MLFLOW_TRACKING_URI": "http://host"}) != {}
    assert parent_tags(absolute, {"MLFLOW_TRACKING_URI": absolute}) == {}
