"""The MLflow tracker. It never delays training: events put records into the outbox, and a thread sends them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dstransformer.errors import without_secrets
from dstransformer.tracking.events import Event, RunEnd, RunStart, RunStatus, Tracker
from dstransformer.tracking.metrics_log import METRICS_NAME, first_time
from dstransformer.tracking.mlflow.location import TrackingState
from dstransformer.tracking.mlflow.outbox import OUTBOX_NAME, Outbox
from dstransformer.tracking.mlflow.parent_run import parent_tags
from dstransformer.tracking.mlflow.records import Recorder
from dstransformer.tracking.mlflow.sender import Sender, StoreUnreachableError, quiet_libraries
from dstransformer.tracking.mlflow.tracked_run import crashed_run

logger = logging.getLogger(__name__)

FINISH_SECONDS: Mapping[RunStatus, float] = {"finished": 60.0, "failed": 10.0, "killed": 10.0}

#: The interval between two points grows to this share of the age of the run, so that a week has about 2,500 points.
SHARE_OF_AGE = 1 / 500


class MlflowTracker(Tracker):
    """Tracks a run folder as one MLflow run, also across resumes.

    No event waits for the store, except ``RunEnd``, which waits at most ``FINISH_SECONDS``. No error of the store is
    raised. While the run folder cannot be written, records are held in memory; only ``RunStart`` raises OSError then.
    """

    name = "MLflow tracking"

    #: Seconds between two looks for records, two tries of a store that failed, and two samples of system metrics.
    flush_seconds, retry_seconds, system_metrics_seconds = 1.0, 15.0, 10.0

    def __init__(
        self,
        run_folder: Path,
        tracking_uri: str,
        experiment: str,
        *,
        system_metrics: bool = True,
        announce: Callable[[str], None] = logger.info,
    ) -> None:
        self._run_folder = run_folder
        self._state = TrackingState(tracking_uri, experiment)
        self._system_metrics = system_metrics  # whether to begin to measure them
        self._announce = announce
        self._outbox = Outbox(run_folder)
        self._recorder: Recorder | None = None
        self._page: str | None = None
        self._registered: str | None = None
        self._finishing = threading.Event()
        self._recovery: str | None = None  # what to log once records are sent again; None while they are
        self._retry_at = 0.0
        self._worker: threading.Thread | None = None

    def emit(self, event: Event) -> None:
        """See ``Tracker.emit``. The first event that counts is ``RunStart``."""
        if isinstance(event, RunStart):
            self._start(event)
        elif self._recorder is None:
            return
        elif isinstance(event, RunEnd):
            self._end(self._recorder, event.status)
        else:
            self._recorder.record(event)

    def _start(self, run: RunStart) -> None:
        """Record the start and begin to send. A resumed run continues the MLflow run of its folder."""
        crashed = None
        if run.resume_step is not None:
            if (stored := TrackingState.load(self._run_folder)) is not None:
                self._state = replace(self._state, run_id=stored.run_id)
        else:
            crashed = crashed_run(self._run_folder, self._outbox, self._state)
            if unsent := self._outbox.pending():
                logger.warning("dropping %d unsent tracking records of an earlier run in this folder", unsent)
            self._outbox.clear()
        self._state.save(self._run_folder)
        self._recorder = Recorder(run, self._run_folder, self._outbox.put_or_hold)
        self._recorder.start(crashed, parent_tags(self._state.tracking_uri))
        self._worker = threading.Thread(
            target=self._send_records, args=(self._recorder,), name="mlflow-sender", daemon=True
        )
        self._worker.start()

    def _end(self, recorder: Recorder, status: RunStatus) -> None:
        """Send the remaining records and end the MLflow run. Records not sent in time stay in the run folder."""
        try:
            recorder.finish(status)
        finally:
            self._finishing.set()
        if self._worker is not None:
            self._worker.join(FINISH_SECONDS[status])
        self._outbox.flush()
        if self._registered is not None:
            self._announce(f"MLflow: {self._registered}")
        if self._page is not None:
            self._announce(self._page)
        if lost := self._outbox.held:
            logger.warning("%d tracking records are lost: %s has no room for them", lost, self._run_folder)
        if left := self._outbox.pending() - lost:
            logger.warning(
                "%d tracking records were not sent to %s and are kept in %s: send them with `dst track %s`",
                left,
                without_secrets(self._state.tracking_uri),
                self._run_folder / OUTBOX_NAME,
                self._run_folder,
            )

    def _send_records(self, recorder: Recorder) -> None:
        """Send records until the run ends. Runs in the worker thread."""
        sender = Sender(self._state, self._run_folder, self._outbox)
        monitor = None
        while True:
            finishing = self._finishing.is_set()
            if finishing and monitor is not None:
                monitor.stop()
            self._outbox.flush()
            self._send_pending(sender, last_try=finishing)
            self._registered = sender.registered
            if self._page is None and sender.page is not None:
                self._page = sender.page
                if not self._finishing.is_set():  # _end announces it as well
                    self._announce(self._page)
            if finishing:
                return
            run_id = sender.state.run_id
            if self._system_metrics and run_id is not None and self._recovery is None:
                self._system_metrics = False
                monitor = self._start_monitor(run_id, recorder)
            self._finishing.wait(self.flush_seconds)

    def _send_pending(self, sender: Sender, *, last_try: bool) -> None:
        due = last_try or time.monotonic() >= self._retry_at
        if self._recovery is not None and not due:
            return
        address, outbox = without_secrets(self._state.tracking_uri), self._run_folder / OUTBOX_NAME
        try:
            sender.send(retry_refused=due)
        except StoreUnreachableError as error:
            self._report_failure(
                f"{address} does not accept tracking records; training continues and they are kept in {outbox}: "
                f"{error}",
                f"{address} accepts tracking records again",
            )
        except OSError as error:
            self._report_failure(
                f"cannot read the tracking records in {outbox}: {error.strerror or error}; training continues, and "
                "they are sent later",
                f"the tracking records in {outbox} are read again",
            )
        else:
            if self._recovery is not None:
                logger.warning("%s", self._recovery)
            self._recovery = None
        finally:
            if due:
                self._retry_at = time.monotonic() + self.retry_seconds

    def _report_failure(self, warning: str, recovery: str) -> None:
        """Log a failure to send, unless the last attempt failed in the same way."""
        if self._recovery != recovery:
            logger.warning("%s", warning)
        self._recovery = recovery

    def _start_monitor(self, run_id: str, recorder: Recorder) -> SystemMetrics | None:
        uri, began = self._state.tracking_uri, first_time(self._run_folder / METRICS_NAME)
        try:
            with quiet_libraries():
                return SystemMetrics(run_id, uri, recorder.record_system_metrics, self.system_metrics_seconds, began)
        except Exception as error:
            logger.warning("cannot measure system metrics: %r", error)
            return None


class SystemMetrics:
    """Samples system metrics in a thread and passes their means to ``publish`` as ``system/…``.

    Measures with MLflow's monitor, but not in the monitor's own thread, which ends at the first failed request.

    ``interval`` is the seconds between two samples, ``began`` when the run began, in Unix seconds; None for now.
    """

    def __init__(
        self,
        run_id: str,
        tracking_uri: str,
        publish: Callable[[Mapping[str, float]], object],
        interval: float,
        began: float | None,
    ) -> None:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

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


def publishing_interval(sampling: float, age: float) -> float:
    """Seconds between two points of a curve: those between two samples, and more when the run is old."""
    return max(sampling, age * SHARE_OF_AGE)
