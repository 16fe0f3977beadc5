"""Where a run is tracked: the store's address, and ``tracking.json`` in the run folder that remembers it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from dstransformer.errors import ConfigError, DataError

STATE_NAME = "tracking.json"
ARTIFACTS_FOLDER = "mlartifacts"
_FORGET = "delete it, and the run is tracked as a new one"
SCHEMES = ("http", "https", "databricks", "sqlite", "postgresql", "mysql", "mssql")


@dataclass(frozen=True)
class TrackingState:
    """The MLflow store and experiment of a run folder; ``run_id`` is None until the store has made the run.

    A SQLite file that has been moved together with the run folder is found beside it.
    """

    tracking_uri: str
    experiment: str
    run_id: str | None = None

    @classmethod
    def load(cls, run_folder: Path) -> TrackingState | None:
        """Read the folder's state, None where it was never tracked; DataError where the file is damaged."""
        path = run_folder / STATE_NAME
        try:
            state = cls(**json.loads(path.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except IsADirectoryError:
            raise DataError(f"{path} is a folder: move it, and the run is tracked as a new one") from None
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}; check its permissions") from None
        except TypeError:
            raise DataError(
                f"{path} is damaged (it does not hold tracking_uri, experiment and run_id): {_FORGET}"
            ) from None
        except ValueError as error:
            raise DataError(f"{path} is damaged ({error}): {_FORGET}") from None
        if not isinstance(state.tracking_uri, str) or _scheme(state.tracking_uri) not in SCHEMES:
            raise DataError(f"{path} is damaged (tracking_uri is {state.tracking_uri!r}): {_FORGET}")
        return replace(state, tracking_uri=_where_it_is_now(state.tracking_uri, run_folder))

    def of_same_run(self, run_folder: Path) -> TrackingState:
        """This state with the run that the folder has been tracked as, so that a resumed run goes on in it."""
        known = TrackingState.load(run_folder)
        return self if known is None else replace(self, run_id=known.run_id)

    def save(self, run_folder: Path) -> None:
        """Replace the folder's state in one step."""
        path = run_folder / STATE_NAME
        aside = path.with_suffix(".tmp")
        aside.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        aside.replace(path)


def resolve_tracking_uri(configured: str | None, run_folder: Path) -> str:
    """The store to use: the configured one, else ``MLFLOW_TRACKING_URI``, else a SQLite file beside the run folder.

    ConfigError where the address names no kind of store that MLflow can use.
    """
    from_environment = os.environ.get("MLFLOW_TRACKING_URI")
    uri = configured or from_environment or f"sqlite:///{run_folder.absolute().parent / 'mlflow.db'}"
    origin = "tracking.uri" if configured else "MLFLOW_TRACKING_URI"
    if _scheme(uri) not in SCHEMES or _lacks_host(uri):
        raise ConfigError(
            f"{origin} is {uri!r}, which names no tracking store: "
            "use an address such as http://host:5000 or sqlite:////path/mlflow.db"
        )
    if (path := sqlite_path(uri)) is not None and path.is_dir():
        raise ConfigError(f"the tracking store {path} is a folder: move it, or name another store with tracking.uri")
    return uri


def sqlite_path(tracking_uri: str) -> Path | None:
    """The file of a SQLite store, None where the address names none."""
    scheme, _, rest = tracking_uri.partition(":///")
    name = rest.partition("?")[0]
    return Path(name).absolute() if _scheme(scheme) == "sqlite" and name not in ("", ":memory:") else None


def artifact_location(tracking_uri: str) -> str | None:
    """Where a new experiment's artifacts go: beside a SQLite file, else the server's own choice."""
    path = sqlite_path(tracking_uri)
    return None if path is None else (path.parent / ARTIFACTS_FOLDER).as_uri()


def _lacks_host(uri: str) -> bool:
    try:
        return _scheme(uri) in ("http", "https") and not urlsplit(uri).hostname
    except ValueError:  # a bracket without its other one
        return True


def _scheme(uri: str) -> str:
    return uri.partition(":")[0].partition("+")[0]


def _where_it_is_now(tracking_uri: str, run_folder: Path) -> str:
    path = sqlite_path(tracking_uri)
    if path is None or path.exists():
        return tracking_uri
    beside = run_folder.absolute().parent / path.name
    return f"sqlite:///{beside}" if beside.exists() else tracking_uri
