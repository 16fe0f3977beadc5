"""Whole runs while their MLflow server fails: training does not notice, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.processes.launching import HANG_SECONDS, free_port, run_dst
from support.services.mlflow_runs import logged_models, send_rest, tracked_run
from support.services.mlflow_server import MlflowServer
from support.training.runs import train_options

from benchmarks.resilience.proxy import Fault, Proxy
from dstransformer.tracking.metrics_log import is_finished

pytestmark = [pytest.mark.usefixtures("patience"), pytest.mark.slow]

#: Values that depend on the speed of the machine.
TIMED = ("tokens_per_second", "seconds", "device_hours", "system/")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The server's disk: a file system of 64 MiB where that can be mounted, else a folder."""
    folder = tmp_path_factory.mktemp("server")
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    yield folder
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def proxy(disk: Path, empty_store: Path) -> Iterator[Proxy]:
    server = MlflowServer(disk, empty_store)
    server.start()
    proxy = Proxy(free_port(), server.port)
    yield proxy
    proxy.close()
    server.kill()


def train(toy_corpus: Path, run: Path, uri: str) -> subprocess.CompletedProcess[str]:
    settings = [f"tracking.uri={uri}", "tracking.system_metrics=false", "training.log_every=1"]
    patience = {"MLFLOW_HTTP_REQUEST_TIMEOUT": str(int(HANG_SECONDS)), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    return run_dst(*train_options(toy_corpus, run, *settings), "--name", "short", extra=patience)


def stored(run_folder: Path) -> dict[str, Any]:
    """What MLflow has of a run, without what depends on time."""
    client, run = tracked_run(run_folder)
    names = sorted(name for name in run.data.metrics if not any(part in name for part in TIMED))
    curves = {name: client.get_metric_history(run.info.run_id, name) for name in names}
    folders = ["", "signatures", "samples", "plots"]
    files = [file.path for folder in folders for file in client.list_artifacts(run.info.run_id, folder)]
    return {
        "status": run.info.status,
        "params": {name: value for name, value in run.data.params.items() if name != "tracking.uri"},
        "tags": sorted(name for name in run.data.tags if name != "mlflow.dst_probe"),
        "curves": {name: sorted((point.step, point.value) for point in points) for name, points in curves.items()},
        "files": sorted(files),
        "datasets": sorted(entry.dataset.name for entry in run.inputs.dataset_inputs),
        "models": [
            (kind, model.params["step"], model.status, sorted(metric.key for metric in model.metrics))
            for kind in ("checkpoint", "translation")
            for model in logged_models(client, run, kind)
        ],
    }


@pytest.fixture(scope="module")
def healthy(toy_corpus: Path, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What MLflow has of a run whose server never failed."""
    run = tmp_path_factory.mktemp("healthy") / "run"
    done = train(toy_corpus, run, proxy.uri)
    assert done.returncode == 0, done.stderr
    send_rest(run)
    found = stored(run)
    assert found["status"] == "FINISHED"
    assert [step for step, _ in found["curves"]["train/loss"]] == list(range(1, 13))
    assert [kind for kind, *_ in found["models"]] == ["checkpoint"] * 3 + ["translation"]
    return found


def test_a_run_whose_server_answers_with_status_500_is_recorded_like_any_other(
    toy_corpus: Path, proxy: Proxy, healthy: dict[str, Any], tmp_path: Path
) -> None:
    """To all that writes, once the run is created. In test_tracking_mlflow a server hangs, dies or was never there."""
    run = tmp_path / "run"

    def refuse_writing(method: str, path: str) -> Fault:
        reads = method == "GET" or path.endswith("search")
        return "none" if reads or "create" in path or is_finished(run) else "status 500"

    proxy.failed, proxy.choose_fault = 0, refuse_writing
    try:
        done = train(toy_corpus, run, proxy.uri)
    finally:
        proxy.choose_fault = lambda *_: "none"
    assert done.returncode == 0, done.stderr
    assert proxy.failed
    assert done.stderr.count("does not accept tracking records; training continues") == 1, done.stderr
    assert done.stderr.count("accepts tracking records again") <= 1
    assert "refused" not in done.stderr
    send_rest(run)
    assert stored(run) == healthy


def test_a_server_whose_disk_is_full_gets_everything_later(
    toy_corpus: Path, proxy: Proxy, healthy: dict[str, Any], disk: Path, tmp_path: Path
) -> None:
    if not disk.is_mount():
        pytest.skip("mounting a small tmpfs needs root")
    run, filler = tmp_path / "run", disk / "filler"

    def choose_fault(*_: str) -> Fault:
        if is_finished(run):
            filler.unlink(missing_ok=True)
        return "none"

    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(65536)):
            pass
    proxy.choose_fault = choose_fault
    try:
        done = train(toy_corpus, run, proxy.uri)
    finally:
        proxy.choose_fault = lambda *_: "none"
        filler.unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("does not accept tracking records; training continues") == 1, done.stderr
    assert "refused" not in done.stderr
    send_rest(run)
    assert stored(run) == healthy
