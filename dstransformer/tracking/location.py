"""Where a run is tracked: the store's address, and ``tracking.json`` in the run folder that remembers it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dstransformer.errors import ConfigError, DataError

STATE_NAME = "tracking.json"
SCHEMES = ("http", "https", "databricks", "sqlite", "postgresql", "mysql", "mssql")


@dataclass(frozen=True)
class TrackingState:
    """The MLflow store and experiment of a run folder; ``run_id`` is None until the store has made the run."""

    tracking_uri: str
    experiment: str
    run_id: str | None = None

    @classmethod
    def load(cls, run_folder: Path) -> TrackingState | None:
        """Read the folder's state, None where it was never tracked; DataError where the file is damaged."""
        path = run_folder / STATE_NAME
        try:
            return cls(**json.loads(path.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError) as error:
            raise DataError(f"{path} is damaged ({error}): delete it, and the run is tracked as a new one") from None

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
    scheme = uri.partition(":")[0].partition("+")[0]
    if scheme not in SCHEMES:
        origin = "tracking.uri" if configured else "MLFLOW_TRACKING_URI"
        raise ConfigError(
            f"{origin} is {uri!r}, which names no tracking store: "
            "use an address such as http://host:5000 or sqlite:////path/mlflow.db"
        )
    return uri


def artifact_location(tracking_uri: str, run_folder: Path) -> str | None:
    """Where a new experiment's artifacts go: beside the run folder for a SQLite file, else the server's own choice."""
    if not tracking_uri.startswith("sqlite:"):
        return None
    return (run_folder.absolute().parent / "mlartifacts").as_uri()
