"""Load of CPU, memory, disk, network and GPUs, as MLflow measures it. Loading this module loads mlflow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

logger = logging.getLogger(__name__)


class SystemMetrics:
    """Samples in a thread of its own and hands ``system/…`` figures to ``publish``.

    MLflow's monitor measures; its own thread is not used, since it ends at the first request that fails.
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
        """End the thread; no figure is published afterwards."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._monitor.sampling_interval):
            try:
                self._monitor.collect_metrics()
                figures = self._monitor.aggregate_metrics()
                for monitor in self._monitor.monitors:
                    monitor.clear_metrics()
                self._publish({f"system/{name}": value for name, value in figures.items()})
            except Exception as error:
                logger.warning("system metrics end here, they could not be measured: %r", error)
                return
