"""Whether a store fits the installed MLflow: the schema of a database, the version of a server."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from dstransformer.config.requirements import supported_versions
from dstransformer.errors import shown, without_secrets

#: Where the documents say how to upgrade a store.
GUIDE = "docs/guide/tracking.md, Upgrading MLflow"

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


def check_revisions(address: str, revisions: Collection[str], other: str) -> None:
    """Check the schema of a database.

    Args:
        address: The database, as an address.
        revisions: The revisions that its table ``alembic_version`` states.
        other: What to do instead of installing another MLflow.

    Raises:
        UnusableStoreError: The schema is that of another MLflow.
    """
    known, newest = known_revisions()
    if set(revisions) == newest:
        return
    place = without_secrets(address)
    if not known.issuperset(revisions):
        raise UnusableStoreError(
            f"{place} has the schema of a newer MLflow than {version('mlflow')}: install that version, or {other} "
            f"({GUIDE})"
        )
    raise UnusableStoreError(
        f"{place} has the schema of an older MLflow than {version('mlflow')}: stop all programs that use it, back it "
        f"up, and run `mlflow db upgrade {place}` ({GUIDE})"
    )


def check_database(address: str) -> None:
    """Check the schema of a database that is not a SQLite file. An empty one passes, as MLflow fills it.

    Raises:
        UnusableStoreError: The schema is that of another MLflow.
        Exception: The database cannot be reached; errors of SQLAlchemy and of the database's driver.
    """
    from sqlalchemy import create_engine, inspect, text

    engine = create_engine(address)
    try:
        with engine.connect() as connection:
            if inspect(connection).has_table("alembic_version"):
                rows = connection.execute(text("SELECT version_num FROM alembic_version"))
                revisions = [str(revision) for (revision,) in rows]
                check_revisions(address, revisions, "name another database with tracking.uri")
    finally:
        engine.dispose()


def server_version(address: str) -> str:
    """The version that a tracking server states. Imports MLflow, which has the user's credentials.

    Raises:
        MlflowException: The server cannot be reached.
        OSError: It answers, but not with a version.
    """
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    answer = http_request(get_default_host_creds(address), "/version", "GET")
    answer.raise_for_status()
    return str(answer.text).strip()


def describe_server(address: str, found: str) -> str | None:
    """What is wrong with a server of this version; None if nothing is."""
    from packaging.version import InvalidVersion, Version

    needed = supported_versions().get("mlflow")
    try:
        if needed is None or needed.contains(found, prereleases=True):
            return None
        is_older = Version(found) < Version(version("mlflow"))
    except InvalidVersion:
        return f"{without_secrets(address)} is not an MLflow server: it gives {shown(found)} as its version"
    return (
        f"{without_secrets(address)} runs MLflow {found}, {'older' if is_older else 'newer'} than the MLflow {needed} "
        f"that dstransformer needs: it may refuse records, which are kept; {'upgrade' if is_older else 'change'} the "
        f"server ({GUIDE})"
    )
