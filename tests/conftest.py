from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
from support.data.corpora import build_toy

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # models are tiny; more threads would only compete

# A shell that starts a job in the background ignores these, and every process of a test would inherit that.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

#: The test folders, slowest first, so that slow tests do not run last on a single worker.
FOLDERS = ("cluster", "distributed", "integration", "gpu", "fuzz", "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by folder. With ``-n``, workers take whole files, so that a file's fixtures are built once."""
    here = Path(__file__).parent
    items.sort(key=lambda item: FOLDERS.index(item.path.relative_to(here).parts[0]))


@pytest.fixture(autouse=True)
def no_tracking_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the tracking server of the user or of an earlier test: ``mlflow.set_tracking_uri`` sets this variable."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Create a folder once for all workers: ``shared_folder(name, make)``. Tests must not change it."""
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
    """A new MLflow database for tests to copy, as creating one takes seconds."""
    from dstransformer.tracking.sqlite_store import prepare_store

    return shared_folder("mlflow-store", lambda folder: prepare_store(folder / "mlflow.db")) / "mlflow.db"


@pytest.fixture(scope="session")
def toy_corpus(shared_folder: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A small corpus of the embedded grammar, built with ``dst-prep``."""
    return shared_folder("toy-corpus", lambda folder: build_toy(folder, pairs=600))
