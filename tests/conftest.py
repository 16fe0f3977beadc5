"""What all tests share, and the two tiers.

``make test`` runs every test but those marked ``extended``. It proves every promise of the documentation at least once
(``tests/unit/test_promises.py`` checks that it does). ``make test-all`` adds the rest: every combination of ranks, ZeRO
stages and precisions, further architectures, faults in every phase, and what needs minutes to compile. Mark a test
``extended`` if it takes seconds and a test of the first tier fails on nearly every mistake that would make it fail.

Where a fixture makes what many tests read, it takes the fixture ``extended``, and makes what only extended tests need
if such tests are selected.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
from support.data.corpora import build_toy
from support.faults.disk import mounted
from support.processes.forks import environment, share_fork_server
from support.processes.launching import run_dst
from support.training.runs import plain_options

#: A file system in memory, and the room that all tests need, with some to spare.
MEMORY, NEEDED_BYTES = Path("/dev/shm"), 8 << 30


def has_room(folder: Path) -> bool:
    """Whether a folder has room for those of the tests, which run programs in them."""
    if not os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    return min(shutil.disk_usage(folder).free, psutil.virtual_memory().available) >= NEEDED_BYTES


os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # models are tiny; more threads would only compete
# Tests wait for the disk longer than they compute: where memory has room for their folders, they lie there.
if "PYTEST_DEBUG_TEMPROOT" not in os.environ and has_room(MEMORY):
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)
# Whatever starts the fork server first, it finds what to preload (Python ignores it if it does not), and so never
# imports this package from the code of a model that MLflow has loaded.
os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]

# A shell that starts a job in the background ignores these, and every process of a test would inherit that.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

#: The test folders, slowest first, so that slow tests do not run last on a single worker.
FOLDERS = ("cluster", "distributed", "integration", "gpu", "fuzz", "unit")

#: The files that take longest; they come before all others.
SLOWEST = (
    "test_tutorials.py", "test_distillation.py", "test_slurm_workflow.py", "test_engine.py", "test_watchdog.py",
    "test_slurm.py", "test_table3.py", "test_markup.py", "test_launch_files.py", "test_tracking_outages.py",
    "test_preemption.py", "test_portable.py", "test_offload.py", "test_two_nodes.py", "test_evaluate.py",
    "test_hf_export.py", "test_tracking_stores.py", "test_separate_vocabularies.py", "test_dst_runs.py",
)  # fmt: skip

#: Where a database of MLflow says in which folder artifacts are: tables and columns.
ARTIFACTS = (("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"))

#: For each file of tests, whether one of its tests belongs to the first tier.
FIRST_TIER = pytest.StashKey[dict[Path, bool]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--part``, with which CI runs a part of the extended tests each day."""
    parser.addoption("--part", metavar="K/N", help="of N parts of the test files, run the K-th")


def pytest_configure(config: pytest.Config) -> None:
    """With ``-n``, start one fork server for all workers: to import what it offers takes seconds."""
    if getattr(config.option, "numprocesses", None):
        share_fork_server()


def pytest_collection() -> None:
    """Importing the tests makes a million objects that stay: look for no garbage meanwhile, and never among them."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage again, among what the tests make."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests by file. With ``-n``, workers take whole files, so that a file's fixtures are built once."""
    here = Path(__file__).parent

    def place(item: pytest.Item) -> tuple[int, int]:
        first = SLOWEST.index(item.path.name) if item.path.name in SLOWEST else len(SLOWEST)
        return first, FOLDERS.index(item.path.relative_to(here).parts[0])

    if part := config.getoption("--part"):
        number, count = map(int, part.split("/"))
        chosen = set(sorted({item.path for item in items})[number - 1 :: count])
        config.hook.pytest_deselected(items=[item for item in items if item.path not in chosen])
        items[:] = [item for item in items if item.path in chosen]
    items.sort(key=place)
    tiers = config.stash.setdefault(FIRST_TIER, {})
    for item in items:
        tiers[item.path] = tiers.get(item.path, False) or item.get_closest_marker("extended") is None


@pytest.fixture(scope="session")
def first_tier(pytestconfig: pytest.Config) -> dict[Path, bool]:
    """For each collected file of tests, whether ``make test`` runs one of its tests."""
    return pytestconfig.stash[FIRST_TIER]


@pytest.fixture(scope="module")
def extended(request: pytest.FixtureRequest) -> bool:
    """Whether tests of this file that are marked ``extended`` are selected."""
    items = request.session.items
    return any(item.get_closest_marker("extended") for item in items if item.path == request.path)


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """What a test changes in the environment ends with it. The tracking server of the user is none of the tests'."""
    with patch.dict(os.environ):
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        yield


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Create a folder once for all workers: ``shared_folder(name, make)``. Tests must not change it."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def share(name: str, make: Callable[[Path], object]) -> Path:
        folder, complete = base / name, base / f"{name}.complete"
        with FileLock(base / f"{name}.lock"):
            if not complete.exists():
                shutil.rmtree(folder, ignore_errors=True)
                make(folder)
                complete.touch()
        return folder

    return share


@pytest.fixture(scope="session")
def empty_store(shared_folder: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A new MLflow database for tests to copy, as creating one takes seconds."""
    from dstransformer.tracking.mlflow.location import create_sqlite

    return shared_folder("mlflow-store", lambda folder: create_sqlite(folder / "mlflow.db")) / "mlflow.db"


@pytest.fixture(scope="session")
def toy_corpus(shared_folder: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A small corpus of the embedded grammar, built with ``dst-prep``."""
    return shared_folder("toy-corpus", lambda folder: build_toy(folder, pairs=600))


@pytest.fixture(scope="session")
def trained(shared_folder: Callable[[str, Callable[[Path], object]], Path], toy_corpus: Path) -> Path:
    """A bundle that has learned the embedded grammar. Tests must not change it."""
    from support.training.trained import trained_bundle

    return shared_folder("trained-bundle", lambda folder: trained_bundle(folder, toy_corpus, updates=150))


@pytest.fixture(scope="session")
def plain_run(
    shared_folder: Callable[[str, Callable[[Path], object]], Path], toy_corpus: Path, empty_store: Path
) -> Path:
    """The run of :func:`plain_options`, in one process. Beside it are its MLflow database and what it printed."""

    def make(folder: Path) -> None:
        folder.mkdir()
        shutil.copy(empty_store, folder / "mlflow.db")
        done = run_dst(*plain_options(toy_corpus, folder / "plain"))
        assert done.returncode == 0, done.stderr
        (folder / "stdout").write_text(done.stdout)
        (folder / "stderr").write_text(done.stderr)

    return shared_folder("plain", make) / "plain"


@pytest.fixture
def plain_copy(plain_run: Path, tmp_path: Path) -> Path:
    """A copy of that run and of what MLflow has of it, for a test to resume or to change."""
    runs = tmp_path / "runs"
    shutil.copytree(plain_run.parent, runs)
    state, places = runs / "plain" / "tracking.json", (str(plain_run.parent), str(runs))
    state.write_text(state.read_text().replace(*places))
    with closing(sqlite3.connect(runs / "mlflow.db")) as store, store:
        for table, column in ARTIFACTS:
            store.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", places)
    return runs / "plain"


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder on a file system of 300 kB, or of another size that is given indirectly."""
    with mounted(tmp_path / "disk", f"size={getattr(request, 'param', '300k')}") as folder:
        yield folder
