from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.data.prep import ENGLISH, GERMAN, WriteText, sentence
from support.processes.launching import HANG_SECONDS, LIMIT

from dstransformer.tracking import mlflow_tracker


@pytest.fixture
def text(tmp_path: Path) -> WriteText:
    def write(pairs: int = 600, folder: Path = tmp_path / "text") -> list[str]:
        folder.mkdir(exist_ok=True)
        options = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--vocab-size", "400"]
        for split, numbers in (("", range(pairs)), ("valid-", range(pairs, pairs + 30))):
            for side, words in (("src", ENGLISH), ("tgt", GERMAN)):
                path = folder / f"{split}{side}.txt"
                path.write_text("".join(sentence(number, words) + "\n" for number in numbers))
                options += [f"--{split}{side}", str(path)]
        return options

    return write


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise MLflow's time limits so that they end hangs only, and turn off its retries."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", str(int(HANG_SECONDS)))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(mlflow_tracker, "FINISH_SECONDS", dict.fromkeys(mlflow_tracker.FINISH_SECONDS, LIMIT))


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "base"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def store(run_folder: Path, empty_store: Path) -> str:
    """The address of a new SQLite database, at the default location of the run."""
    shutil.copy(empty_store, run_folder.parent / "mlflow.db")
    return f"sqlite:///{run_folder.parent}/mlflow.db"
