"""MLflow's SQLite file: made whole or not at all, and recognised where it is broken.

MLflow creates and migrates a SQLite file in place and without a lock, so two runs that start at once, or one that is
killed meanwhile, leave a file that no MLflow can open again. Here it is made aside, under a lock, and renamed.
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

from filelock import FileLock

from dstransformer.tracking.location import ARTIFACTS_FOLDER

logger = logging.getLogger(__name__)

LOCK_SECONDS = 300.0  # a migration from nothing takes seconds; longer on a slow disk
SETTLE_SECONDS = 10.0  # another program may be in the middle of making a store that looks broken
BUSY_SECONDS = 20.0
ADDRESSES = (("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"))
COMPANIONS = ("", "-journal", "-wal", "-shm")  # what SQLite keeps beside a database


class UnusableStoreError(Exception):
    """A sound file that this MLflow cannot use; the text says what to do."""


def prepare_store(path: Path, *, settle_seconds: float = SETTLE_SECONDS) -> None:
    """See to it that ``path`` is a store that this MLflow can use: make one where there is none or a broken one.

    A broken file is moved aside, never deleted. A file of an older schema is left alone, as other programs may use it.

    Raises:
        UnusableStoreError: The file is no MLflow store, or has another version's schema.
        OSError, sqlite3.Error, filelock.Timeout: The file system or another program stands in the way.
    """
    if find_fault(path) is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=LOCK_SECONDS):
        fault = _lasting_fault(path, settle_seconds)
        if fault is None:
            return
        _close_connections(path)
        if path.exists():
            logger.warning(
                "the MLflow store %s is broken (%s): it is kept as %s, and a new one is made",
                path, fault, _move_aside(path),
            )  # fmt: skip
        _create(path)


def find_fault(path: Path) -> str | None:
    """Why there is no store that could be used, None where there is one."""
    try:
        if path.stat().st_size == 0:
            return "it is empty"
    except FileNotFoundError:
        return "there is none"
    try:
        with _opened(path) as connection:
            return _fault_of_schema(path, connection)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return str(error)
        raise


def _fault_of_schema(path: Path, connection: sqlite3.Connection) -> str | None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return "it is empty"
    if "alembic_version" not in tables and "experiments" not in tables:
        raise UnusableStoreError(f"{path} is another program's database: name another file with tracking.uri")
    if "experiments" not in tables or "alembic_version" not in tables:
        return "its creation was cut short"
    if any(name.startswith("_alembic_tmp_") for name in tables):
        return "a migration of its schema was cut short"
    revisions = [revision for (revision,) in connection.execute("SELECT version_num FROM alembic_version")]
    if not connection.execute("SELECT 1 FROM experiments LIMIT 1").fetchone():  # MLflow's own comes last
        return "its creation was cut short"
    _check_revision(path, revisions)
    return None


def _check_revision(path: Path, revisions: list[str]) -> None:
    import mlflow
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    scripts = ScriptDirectory(str(Path(mlflow.__file__).parent / "store" / "db_migrations"))
    if revisions == scripts.get_heads():
        return
    try:
        scripts.get_revisions(tuple(revisions))
    except CommandError:
        raise UnusableStoreError(
            f"{path} was made by a newer MLflow than {mlflow.__version__}: install that one, "
            "or name another file with tracking.uri"
        ) from None
    raise UnusableStoreError(
        f"{path} has the schema of an older MLflow: stop what uses it, copy it, and run "
        f"`mlflow db upgrade sqlite:///{path}`"
    )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    # Never opened as a plain file: closing that would drop the locks that SQLite holds in this process.
    address = f"file:{urllib.parse.quote(str(path))}?mode=rw"
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as connection:
        yield connection


def _lasting_fault(path: Path, settle_seconds: float) -> str | None:
    """The fault that is left when nobody has written for a while; a missing file has nobody who writes."""
    deadline = time.monotonic() + LOCK_SECONDS
    while (fault := find_fault(path)) is not None and path.exists():
        if time.time() - _last_change(path) >= settle_seconds or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return fault


def _last_change(path: Path) -> float:
    changes = [0.0]
    for file in _companions(path):
        with contextlib.suppress(FileNotFoundError):
            changes.append(file.stat().st_mtime)
    return max(changes)


def _companions(path: Path) -> list[Path]:
    return [file for suffix in COMPANIONS if (file := path.with_name(path.name + suffix)).exists()]


def _move_aside(path: Path) -> Path:
    when = datetime.now().astimezone().strftime("%Y-%m-%dT%H-%M-%S-%f")
    kept = path.with_name(f"{path.name}.broken-{when}")
    for file in reversed(_companions(path)):
        file.rename(kept.with_name(kept.name + file.name.removeprefix(path.name)))
    return kept


def _create(path: Path) -> None:
    """Make an empty store beside ``path`` and rename it. Only under the lock."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for leftover in path.parent.glob(f".{path.name}.new-*"):
        leftover.unlink()
    aside = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        SqlAlchemyStore(f"sqlite:///{aside}", (path.parent / ARTIFACTS_FOLDER).as_uri()).engine.dispose()
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        aside.rename(path)
    finally:
        SqlAlchemyStore._engine_map.pop(f"sqlite:///{aside}", None)
        for file in _companions(aside):
            file.unlink()


def _close_connections(path: Path) -> None:
    """MLflow keeps connections for the whole process; those to a file that is replaced would write into nothing."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for engine in SqlAlchemyStore._engine_map.values():
        if engine.url.database and Path(engine.url.database).absolute() == path:
            engine.dispose()


def follow_moved_artifacts(path: Path) -> None:
    """Where a store was moved together with its artifacts, write down where these are now.

    MLflow writes the artifacts' absolute addresses into the store, so a moved folder loses them.
    """
    now = path.parent / ARTIFACTS_FOLDER
    if not now.is_dir():
        return
    with _opened(path) as connection:
        known = [location for (location,) in connection.execute("SELECT artifact_location FROM experiments")]
        for before in known:
            if before.endswith(f"/{ARTIFACTS_FOLDER}") and not _is_there(before):
                changed = _replace_prefix(connection, before, now.as_uri())
                logger.warning("the artifacts of %s are now in %s: %d addresses changed", path, now, changed)


def _is_there(address: str) -> bool:
    parts = urllib.parse.urlsplit(address)
    return parts.scheme != "file" or Path(urllib.parse.unquote(parts.path)).exists()


def _replace_prefix(connection: sqlite3.Connection, before: str, now: str) -> int:
    changed = 0
    with connection:
        for table, column in ADDRESSES:
            changed += connection.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                (now, len(before) + 1, before, len(before) + 1, f"{before}/"),
            ).rowcount
    return changed
