"""System metrics (CPU, memory, disk, network, GPU), measured by MLflow. Imports mlflow."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

logger = logging.getLogger(__name__)

#: The interval between two points grows to this share of the age of the run, so that a week has about 2,500 points.
SHARE_OF_AGE = 1 / 500


def publishing_interval(sampling: float, age: float) -> float:
    """Seconds between two points of a curve: those between two samples, and more when the run is old."""
    return max(sampling, age * SHARE_OF_AGE)


class SystemMetrics:
    """Samples system metrics in a thread and passes their means to ``publish`` as ``system/…``.

    Measures with MLflow's monitor, but not in the monitor's own thread, which ends at the first failed request.

    Args:
        run_id: The MLflow run.
        tracking_uri: Address of the store.
        publish: Receives the metrics.
        interval: Seconds between two samples.
        began: When the run began, in Unix seconds; None: now.
    """

    def __init__(
        self,
        run_id: str,
        tracking_uri: str,
        publish: Callable[[Mapping[str, float]], object],
        interval: float,
        began: float | None = None,
    ) -> None:
        self._monitor = SystemMetricsMonitor(run_id, sampling_interval=interval, tracking_uri=tracking_uri)
        self._publish = publish
        self._began = time.time() if began is None else began
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Nothing is published afterwards."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        sampling = self._monitor.sampling_interval
        published = time.time()
        while not self._stop.wait(sampling):
            try:
                self._monitor.collect_metrics()
                now = time.time()
                if now - published + sampling / 2 < publishing_interval(sampling, now - self._began):
                    continue
                published = now
                metrics = self._monitor.aggregate_metrics()
                for monitor in self._monitor.monitors:
                    monitor.clear_metrics()
                self._publish({f"system/{name}": value for name, value in metrics.items()})
            except Exception as error:
                logger.warning("stopped measuring system metrics: %r", error)
                return
