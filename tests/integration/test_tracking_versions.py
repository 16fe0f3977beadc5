"""A database with the schema of an earlier MLflow: training goes on, and says what to do."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import mlflow
import pytest
from alembic import command
from alembic.config import Config as AlembicConfig
from support.processes.launching import run_command, run_dst
from support.services.mlflow_runs import tracked_run
from support.training.runs import TINY

#: A revision of the schema before MLflow 3.
EARLIER = "5b0e9adcef9c"


def create_earlier_store(path: Path) -> None:
    """Create a database as an earlier MLflow did, by its migrations up to then."""
    migrations = Path(mlflow.__file__).parent / "store" / "db_migrations"
    config = AlembicConfig(str(migrations / "alembic.ini"))
    config.set_main_option("script_location", str(migrations))
    config.set_main_option("sqlalchemy.url", f"sqlite:///{path}")
    from mlflow.store.tracking.dbmodels.initial_models import Base
    from sqlalchemy import create_engine

    Base.metadata.create_all(create_engine(f"sqlite:///{path}"))
    command.upgrade(config, EARLIER)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO experiments (experiment_id, name, lifecycle_stage) VALUES (0, 'Default', 'active')"
        )


@pytest.mark.slow
def test_training_goes_on_beside_an_earlier_schema_until_it_is_upgraded(toy_corpus: Path, tmp_path: Path) -> None:
    store, run = tmp_path / "runs" / "mlflow.db", tmp_path / "runs" / "run"
    store.parent.mkdir()
    create_earlier_store(store)
    before = store.read_bytes()
    limits = ["training.max_updates=2", "tracking.enabled=true", "tracking.system_metrics=false"]
    done = run_dst("train", "toy", "--corpus", str(toy_corpus), "--run", str(run), "--set", *TINY, *limits)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "mlflow db upgrade" in line)
    advice = f"stop all programs that use it, back it up, and run `mlflow db upgrade sqlite:///{store}`"
    assert "does not accept tracking records; training continues and they are kept in" in line
    assert f"has the schema of an older MLflow than {mlflow.__version__}: {advice}" in line
    refused = run_dst("track", str(run))
    assert refused.returncode == 1
    assert advice in refused.stderr
    assert "Traceback" not in done.stderr + refused.stderr
    assert store.read_bytes() == before

    upgraded = run_command([sys.executable, "-m", "mlflow", "db", "upgrade", f"sqlite:///{store}"])
    assert upgraded.returncode == 0, upgraded.stderr
    sent = run_dst("track", str(run))
    assert sent.returncode == 0, sent.stderr
    client, found = tracked_run(run)
    assert found.info.status == "FINISHED"
    assert [metric.step for metric in client.get_metric_history(found.info.run_id, "train/loss")] == [1, 2]
