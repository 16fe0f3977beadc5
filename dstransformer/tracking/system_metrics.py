"""System metrics (CPU, memory, disk, network, GPU), measured by MLflow. Imports mlflow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

logger = logging.getLogger(__name__)


class SystemMetrics:
    """Samples system metrics in a thread and passes them to ``publish`` as ``system/…``.

    Measures with MLflow's monitor, but not in the monitor's own thread, which ends at the first failed request.
    """

    def __init__(
        self, run_id: str, tracking_uri: str, publish: Callable[[Mapping[str, float]], None], interval: float
    ) -> None:
        self._monitor = SystemMetricsMonitor(run_id, sampling_interval=interval, tracking_uri=tracking_uri)
        self._publish = publish
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Nothing is published afterwards."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._monitor.sampling_interval):
            try:
                self._monitor.collect_metrics()
                metrics = self._monitor.aggregate_metrics()
                for monitor in self._monitor.monitors:
                    monitor.clear_metrics()
                self._publish({f"system/{name}": value for name, value in metrics.items()})
            except Exception as error:
                logger.warning("stopped measuring system metrics: %r", error)
                return
