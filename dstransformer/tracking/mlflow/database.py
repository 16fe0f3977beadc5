"""MLflow's database: it is used only if its schema is that of the installed MLflow, and a SQLite file is created whole.

MLflow creates and migrates a database in place. Two runs that start together, or one that is killed, can leave one that
MLflow cannot open. Here a SQLite file is created aside, under a lock, and renamed.
"""

from __future__ import annotations

import glob
import os
import re
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from dstransformer.errors import shell_word, without_secrets
from dstransformer.io.files import hold_lock, sync
from dstransformer.tracking.mlflow.location import ARTIFACTS_FOLDER, sqlite_address

LOCK_SECONDS = 300.0  # creating the schema takes seconds, longer on a slow disk

_REVISIONS = re.compile(r"^(down_)?revision\b[^=\n]*=(.*)", re.MULTILINE)


class UnusableStoreError(Exception):
    """The store is intact but this MLflow cannot use it. The message says what to do."""


@cache
def known_revisions() -> tuple[frozenset[str], frozenset[str]]:
    """The revisions of the schema that the installed MLflow knows, and the newest of them.

    They are read from its migrations, as MLflow takes seconds to import.
    """
    spec = find_spec("mlflow")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "store" / "db_migrations" / "versions"
    own: set[str] = set()
    below: set[str] = set()
    for path in folder.glob("*.py"):
        for is_below, value in _REVISIONS.findall(path.read_text(encoding="utf-8")):
            (below if is_below else own).update(re.findall(r"\w{6,}", value))
    return frozenset(own), frozenset(own - below)


def check_database(address: str) -> None:
    """Check the schema of a database. An empty one passes, as MLflow fills it.

    Raises:
        UnusableStoreError: The schema is that of another MLflow, or not MLflow's.
        Exception: The database cannot be read; errors of SQLAlchemy and of the database's driver.
    """
    from sqlalchemy import create_engine, inspect, text

    engine, place = create_engine(address), without_secrets(address)
    try:
        with engine.connect() as connection:
            tables = inspect(connection).get_table_names()
            if "alembic_version" not in tables:
                if tables:
                    raise UnusableStoreError(f"{place} is another program's database: name another with tracking.uri")
                return
            found = {
                str(revision) for (revision,) in connection.execute(text("SELECT version_num FROM alembic_version"))
            }
    finally:
        engine.dispose()
    known, newest = known_revisions()
    if found == newest:
        return
    advice = (
        f"stop all programs that use it, back it up, and run `mlflow db upgrade {shell_word(place)}`"
        if known.issuperset(found)
        else "install that version, or name another database with tracking.uri"
    )
    raise UnusableStoreError(
        f"{place} has the schema of {'an older' if known.issuperset(found) else 'a newer'} MLflow than "
        f"{version('mlflow')}: {advice} (guide: tracking, Upgrading MLflow)"
    )


def create_sqlite(path: Path) -> None:
    """Create MLflow's SQLite file, unless it exists. Several processes may do so at once.

    Raises:
        OSError, UserError, Exception: The file cannot be written, or another program has been creating it for long.
    """
    if _is_there(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    busy = f"another program has been creating {path} for {LOCK_SECONDS:.0f} s ({{owner}})"
    with hold_lock(path.with_name(f".{path.name}.lock"), busy, wait=LOCK_SECONDS):
        if not _is_there(path):
            _create(path)


def _is_there(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _create(path: Path) -> None:
    """Create the schema in a temporary file and rename it. Requires the lock."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for engine in SqlAlchemyStore._engine_map.values():  # pooled connections would write to a file that was deleted
        if engine.url.database and Path(engine.url.database).absolute() == path:
            engine.dispose()
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.new-*"):
        leftover.unlink()
    temporary = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        SqlAlchemyStore(sqlite_address(temporary), (path.parent / ARTIFACTS_FOLDER).as_uri()).engine.dispose()
        sync(temporary)
        temporary.rename(path)
    finally:
        SqlAlchemyStore._engine_map.pop(sqlite_address(temporary), None)
        for leftover in path.parent.glob(f"{glob.escape(temporary.name)}*"):
            leftover.unlink()
