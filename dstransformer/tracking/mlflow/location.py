"""Where a run is tracked: the address of the store, which ``tracking.json`` records, and the database that is there.

A database is used only if its schema is that of the installed MLflow.
"""

from __future__ import annotations

import glob
import json
import os
import re
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pydantic import TypeAdapter

from dstransformer.errors import MASK, ConfigError, shell_word, without_secrets
from dstransformer.io.files import hold_lock, replace_file, sync
from dstransformer.io.json_text import read_record

STATE_NAME = "tracking.json"
ARTIFACTS_FOLDER = "mlartifacts"

#: User and password of an address.
_USER = re.compile(r"://[^/\s]*@")

_START_OVER = "move it away, and the next `dst train` there tracks the run as a new one"
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
SCHEMES = ("http", "https", "databricks", *DATABASES)

LOCK_SECONDS = 300.0  # creating the schema takes seconds, longer on a slow disk

_REVISIONS = re.compile(r"^(down_)?revision\b[^=\n]*=(.*)", re.MULTILINE)  # in a migration of MLflow's


@dataclass(frozen=True)
class TrackingState:
    """The MLflow store and experiment of a run folder. ``run_id`` is None until the store has created the run."""

    tracking_uri: str
    experiment: str
    run_id: str | None = None

    @classmethod
    def load(cls, run_folder: Path) -> TrackingState | None:
        """Read the state of a run folder. Finds a SQLite file that was moved together with the folder.

        If the folder of the SQLite file does not exist, a new file belongs beside the run. ``tracking.json`` has no
        passwords; they come from the environment, see :func:`with_secrets`.

        Returns:
            The state; None if the run was never tracked.

        Raises:
            DataError: ``tracking.json`` is damaged or cannot be read.
        """
        path = run_folder / STATE_NAME
        if not path.exists():
            return None

        def build(record: dict[str, Any]) -> TrackingState:
            state = TypeAdapter(cls).validate_python(record)
            if not _is_store(state.tracking_uri):
                raise ValueError(f"tracking_uri is {without_secrets(state.tracking_uri)!r}")
            return state

        state = read_record(path, build, advice=_START_OVER)
        uri, file = state.tracking_uri, sqlite_path(state.tracking_uri)
        if file is not None and not file.exists():
            beside = run_folder.absolute().parent / file.name
            if beside.exists() or not file.parent.exists():
                uri = sqlite_address(beside)
        return replace(state, tracking_uri=with_secrets(uri))

    def save(self, run_folder: Path) -> None:
        """Write the state to the run folder atomically, without passwords."""
        public = replace(self, tracking_uri=without_secrets(self.tracking_uri))
        replace_file(run_folder / STATE_NAME, json.dumps(asdict(public), indent=2) + "\n")


def resolve_tracking_uri(configured: str | None, run_folder: Path) -> str:
    """The store to use: the configured one, else ``MLFLOW_TRACKING_URI``, else a SQLite file beside the run folder.

    The path of a SQLite file is made absolute: ``dst track`` may be called in another folder.

    Raises:
        ConfigError: MLflow does not support the address.
    """
    from_environment = os.environ.get("MLFLOW_TRACKING_URI")
    uri = configured or from_environment or sqlite_address(run_folder.absolute().parent / "mlflow.db")
    setting = "tracking.uri" if configured else "MLFLOW_TRACKING_URI"
    if not _is_store(uri):
        raise ConfigError(
            f"{setting} is {without_secrets(uri)!r}, which is not the address of a tracking store: "
            "use an address such as http://host:5000 or sqlite:////path/mlflow.db"
        )
    if (path := sqlite_path(uri)) is None:
        return uri
    if path.is_dir():
        raise ConfigError(f"the tracking store {path} is a folder: move it, or name another store with tracking.uri")
    _, mark, options = uri.partition("?")
    return sqlite_address(path, uri.partition(":///")[0]) + mark + options


def resolve_experiment(configured: str | None) -> str:
    """The experiment to use: the configured one, else ``MLFLOW_EXPERIMENT_NAME``, else ``dstransformer``."""
    return configured or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "dstransformer"


def with_secrets(stored: str) -> str:
    """A stored address with the password that files leave out: ``MLFLOW_TRACKING_URI``, if it names the same store.

    If the environment has ``MLFLOW_TRACKING_PASSWORD`` or ``MLFLOW_TRACKING_TOKEN``, an ``http`` address loses its
    user: MLflow reads both from there.
    """
    from_environment = os.environ.get("MLFLOW_TRACKING_URI", "")
    if is_same_store(from_environment, stored):
        return from_environment
    mlflow_has_it = any(os.environ.get(f"MLFLOW_TRACKING_{name}") for name in ("PASSWORD", "TOKEN"))
    return _USER.sub("://", stored) if mlflow_has_it and MASK in stored and stored.startswith("http") else stored


def check_secrets(tracking_uri: str) -> None:
    """Check that an address has its password.

    Raises:
        ConfigError: The file leaves the password out, and the environment does not have it.
    """
    if MASK in tracking_uri:
        raise ConfigError(
            f"the password of {tracking_uri} is in no file: set MLFLOW_TRACKING_URI to the whole address, or "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )


def is_same_store(one: str, other: str) -> bool:
    """Whether two addresses name one SQLite file, or differ in user and password at most."""
    if path := sqlite_path(one):
        return path == sqlite_path(other)
    return _USER.sub("://", without_secrets(one)) == _USER.sub("://", without_secrets(other))


def sqlite_address(path: Path, scheme: str = "sqlite") -> str:
    """The address of a SQLite file. SQLAlchemy ends its name at ``?`` and decodes ``%41``; ``&key=`` seems a secret."""
    name = re.sub(r"[%?&\n]", lambda character: quote(character[0]), str(path))
    if scheme == "sqlite" and name != str(path):  # MLflow makes the folder of a file there without decoding its name
        scheme = "sqlite+pysqlite"
    return f"{scheme}:///{name}"


def sqlite_path(tracking_uri: str) -> Path | None:
    """The file of a SQLite store; None for other stores."""
    scheme, _, rest = tracking_uri.partition(":///")
    name = unquote(rest.partition("?")[0])
    return Path(name).absolute() if _scheme(scheme) == "sqlite" and name not in ("", ":memory:") else None


def is_database(tracking_uri: str) -> bool:
    """Whether a store is a database that MLflow opens itself, not a server."""
    return _scheme(tracking_uri) in DATABASES


def artifact_location(tracking_uri: str) -> str | None:
    """Where to store the artifacts of a new experiment: beside a SQLite file; None leaves it to the server."""
    path = sqlite_path(tracking_uri)
    return None if path is None else (path.parent / ARTIFACTS_FOLDER).as_uri()


def _is_store(uri: str) -> bool:
    try:
        return _scheme(uri) in SCHEMES and (_scheme(uri) not in ("http", "https") or bool(urlsplit(uri).hostname))
    except ValueError:  # an unmatched bracket
        return False


def _scheme(uri: str) -> str:
    return uri.partition(":")[0].partition("+")[0]


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
    revisions: set[str] = set()
    earlier: set[str] = set()
    for path in folder.glob("*.py"):
        for is_down, value in _REVISIONS.findall(path.read_text(encoding="utf-8")):
            (earlier if is_down else revisions).update(re.findall(r"\w{6,}", value))
    return frozenset(revisions), frozenset(revisions - earlier)


def check_database(address: str) -> None:
    """Check the schema of a database. An empty one passes, as MLflow fills it.

    Raises:
        UnusableStoreError: The schema is that of another MLflow, or not MLflow's.
        Exception: The database cannot be read; errors of SQLAlchemy and of the database's driver.
    """
    from sqlalchemy import create_engine, inspect, text

    engine, shown = create_engine(address), without_secrets(address)
    try:
        with engine.connect() as connection:
            tables = inspect(connection).get_table_names()
            if "alembic_version" not in tables:
                if tables:
                    raise UnusableStoreError(f"{shown} is another program's database: name another with tracking.uri")
                return
            stored = set(connection.scalars(text("SELECT version_num FROM alembic_version")))
    finally:
        engine.dispose()
    known, newest = known_revisions()
    if stored == newest:
        return
    if known.issuperset(stored):
        age = "an older"
        advice = f"stop all programs that use it, back it up, and run `mlflow db upgrade {shell_word(shown)}`"
    else:
        age, advice = "a newer", "install that version, or name another database with tracking.uri"
    raise UnusableStoreError(
        f"{shown} has the schema of {age} MLflow than {version('mlflow')}: {advice} (guide: tracking, Upgrading MLflow)"
    )


def create_sqlite(path: Path) -> None:
    """Create MLflow's SQLite file, unless it exists.

    MLflow would create it in place: two runs that start together, or one that is killed, could leave a file that MLflow
    cannot open. So it is created aside, under a lock, and renamed.

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
