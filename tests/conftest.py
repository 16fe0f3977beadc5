from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
from support.corpora import build_toy

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models; threads would only get into each other's way

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

#: The folders of tests, those that take longest first, so that no worker is left alone with them in the end.
FOLDERS = ("cluster", "distributed", "integration", "gpu", "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Several workers (``-n``) share the tests by file, so that what a file's tests share is made once."""
    here = Path(__file__).parent
    items.sort(key=lambda item: FOLDERS.index(item.path.relative_to(here).parts[0]))


@pytest.fixture(autouse=True)
def no_tracking_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the user's nor that of a test before: ``mlflow.set_tracking_uri`` writes it into the environment."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Makes a folder once for all workers: ``shared_folder(name, make)``. Nobody may change it afterwards."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def share(name: str, make: Callable[[Path], object]) -> Path:
        folder = base / name
        with FileLock(base / f"{name}.lock"):
            if not folder.exists():
                aside = base / f"{name}.partial"
                shutil.rmtree(aside, ignore_errors=True)
                make(aside)
                aside.rename(folder)
        return folder

    return share


@pytest.fixture(scope="session")
def empty_store(shared_folder: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A new MLflow database, for tests to copy: making one takes MLflow seconds."""
    from dstransformer.tracking.sqlite_store import prepare_store

    return shared_folder("mlflow-store", lambda folder: prepare_store(folder / "mlflow.db")) / "mlflow.db"


@pytest.fixture(scope="session")
def toy_corpus(shared_folder: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A small corpus of the embedded grammar, as ``dst-prep`` builds it."""
    return shared_folder("toy-corpus", lambda folder: build_toy(folder, pairs=600))
