"""Creates MLflow's SQLite file atomically, and replaces a broken one.

MLflow creates and migrates a SQLite file in place and without a lock. Two runs that start together, or one that is
killed, can leave a file that MLflow cannot open. Here it is created as a temporary file, under a lock, and renamed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
import urllib.parse
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from dstransformer.io.files import hold_lock, sync
from dstransformer.tracking.mlflow.location import ARTIFACTS_FOLDER
from dstransformer.tracking.mlflow.versions import UnusableStoreError, check_revisions

logger = logging.getLogger(__name__)

LOCK_SECONDS = 300.0  # creating the schema takes seconds, longer on a slow disk
SETTLE_SECONDS = 10.0  # another program may still be creating a store that looks broken
BUSY_SECONDS = 20.0
PATH_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
FILE_SUFFIXES = ("", "-journal", "-wal", "-shm")  # suffixes of the files that make up a SQLite database


def prepare_store(path: Path, *, settle_seconds: float = SETTLE_SECONDS) -> None:
    """Make sure that ``path`` is a store that this MLflow can use. Create it if it is missing or broken.

    A broken file is renamed, never deleted. A file with an older schema is left alone, as other programs may use it.

    Raises:
        UnusableStoreError: The file is not an MLflow store, or has the schema of another MLflow version.
        OSError, sqlite3.Error, UserError: The file cannot be read or written, or another program holds it.
    """
    if find_problem(path) is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    busy = f"another program has been creating {path} for {LOCK_SECONDS:.0f} s ({{owner}})"
    with hold_lock(path.with_name(f".{path.name}.lock"), busy, wait=LOCK_SECONDS):
        problem = _find_settled_problem(path, settle_seconds)
        if problem is None:
            return
        _close_connections(path)
        if path.exists():
            logger.warning(
                "the MLflow store %s is broken (%s): keeping it as %s and creating a new one",
                path, problem, _move_aside(path),
            )  # fmt: skip
        _create(path)


def find_problem(path: Path) -> str | None:
    """Why the file is missing or broken; None if it is a usable store."""
    try:
        if path.stat().st_size == 0:
            return "it is empty"
    except FileNotFoundError:
        return "it does not exist"
    try:
        with _open_database(path) as connection:
            return _find_schema_problem(path, connection)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return str(error)
        raise


def _find_schema_problem(path: Path, connection: sqlite3.Connection) -> str | None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return "it is empty"
    if "alembic_version" not in tables and "experiments" not in tables:
        raise UnusableStoreError(f"{path} is another program's database: name another file with tracking.uri")
    if "experiments" not in tables or "alembic_version" not in tables:
        return "its creation was interrupted"
    if any(name.startswith("_alembic_tmp_") for name in tables):
        return "a migration of its schema was interrupted"
    revisions = [revision for (revision,) in connection.execute("SELECT version_num FROM alembic_version")]
    if not connection.execute(
        "SELECT 1 FROM experiments LIMIT 1"
    ).fetchone():  # MLflow inserts its default experiment last
        return "its creation was interrupted"
    check_revisions(f"sqlite:///{path}", revisions, "name another file with tracking.uri")
    return None


@contextlib.contextmanager
def _open_database(path: Path) -> Iterator[sqlite3.Connection]:
    # Never open it as a plain file: closing that would release the locks that SQLite holds in this process.
    address = f"file:{urllib.parse.quote(str(path))}?mode=rw"
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as connection:
        yield connection


def _find_settled_problem(path: Path, settle_seconds: float) -> str | None:
    """What is wrong with the file once nobody has written to it for ``settle_seconds``. Does not wait if missing."""
    deadline = time.monotonic() + LOCK_SECONDS
    while (problem := find_problem(path)) is not None and path.exists():
        if time.time() - _last_change(path) >= settle_seconds or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return problem


def _last_change(path: Path) -> float:
    changes = [0.0]
    for file in _database_files(path):
        with contextlib.suppress(FileNotFoundError):
            changes.append(file.stat().st_mtime)
    return max(changes)


def _database_files(path: Path) -> list[Path]:
    return [file for suffix in FILE_SUFFIXES if (file := path.with_name(path.name + suffix)).exists()]


def _move_aside(path: Path) -> Path:
    when = datetime.now().astimezone().strftime("%Y-%m-%dT%H-%M-%S-%f")
    kept = path.with_name(f"{path.name}.broken-{when}")
    for file in reversed(_database_files(path)):
        file.rename(kept.with_name(kept.name + file.name.removeprefix(path.name)))
    return kept


def _create(path: Path) -> None:
    """Create an empty store in a temporary file and rename it. Requires the lock."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for leftover in path.parent.glob(f".{path.name}.new-*"):
        leftover.unlink()
    temporary = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        SqlAlchemyStore(f"sqlite:///{temporary}", (path.parent / ARTIFACTS_FOLDER).as_uri()).engine.dispose()
        sync(temporary)
        temporary.rename(path)
    finally:
        SqlAlchemyStore._engine_map.pop(f"sqlite:///{temporary}", None)
        for file in _database_files(temporary):
            file.unlink()


def _close_connections(path: Path) -> None:
    """Close MLflow's pooled connections to a file before it is replaced; they would write to the old one."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for engine in SqlAlchemyStore._engine_map.values():
        if engine.url.database and Path(engine.url.database).absolute() == path:
            engine.dispose()


def update_artifact_paths(path: Path) -> None:
    """If a store was moved together with its artifacts, update the artifact paths in it.

    MLflow stores absolute artifact paths, so they break when the folder moves.
    """
    now = path.parent / ARTIFACTS_FOLDER
    if not now.is_dir():
        return
    with _open_database(path) as connection:
        known = [location for (location,) in connection.execute("SELECT artifact_location FROM experiments")]
        for before in known:
            if before.endswith(f"/{ARTIFACTS_FOLDER}") and not _exists(before):
                changed = _replace_prefix(connection, before, now.as_uri())
                logger.warning("the artifacts of %s are now in %s: updated %d paths", path, now, changed)


def _exists(address: str) -> bool:
    parts = urllib.parse.urlsplit(address)
    return parts.scheme != "file" or Path(urllib.parse.unquote(parts.path)).exists()


def _replace_prefix(connection: sqlite3.Connection, before: str, now: str) -> int:
    changed = 0
    with connection:
        for table, column in PATH_COLUMNS:
            changed += connection.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                (now, len(before) + 1, before, len(before) + 1, f"{before}/"),
            ).rowcount
    return changed
