"""Training beside a tracking server that works, is not there, takes 5 seconds for an answer, or answers status 500.

The same run trains with each, in processes that take turns: all but one are stopped at any time. Every update is
logged, fifty times as often as by default. A real MLflow server stands behind the proxy that makes it fail.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.lib.bars import print_at_most
from benchmarks.lib.machine import watch_others
from benchmarks.lib.processes import Worker, environment, free_port, run_prep, wait_for_server
from benchmarks.lib.turns import median_ratio, ratios
from benchmarks.resilience.proxy import Fault, Proxy
from dstransformer.config import load_config
from dstransformer.data import Corpus
from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.supervision.session import Session
from dstransformer.distributed.world import join_world
from dstransformer.tracking.events import Event, RunStart, Tracker, TrainingProgress
from dstransformer.training.build import build_tracker

SMOKE_OPTIONS = "--rounds 1 --updates 1"
SLOW_SECONDS = 5.0
START_TIMEOUT = 120.0
BAR = 1.01

HEALTHY = "healthy server"
SETTINGS = ["training.log_every=1", "training.max_updates=100000", "validation.every=0", "checkpoint.every_updates=0"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=11, help="turns of each run; default: 11")
    parser.add_argument("--updates", type=int, default=8, help="of a turn; default: 8")


def main(options: argparse.Namespace) -> None:
    rounds = f"medians of {options.rounds} turns of {options.updates} updates"
    print(f"preset toy, fp32, one thread, every update logged; seconds per update, {rounds}")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        run_prep("build", "--source", "toy", "--pairs", "20000", "--out", str(folder / "corpus"))
        port = stack.enter_context(_mlflow_server(folder))
        stores = _stores(port, stack)
        runs = {state: Run(folder, folder / f"run-{number}", uri) for number, (state, uri) in enumerate(stores.items())}
        for run in runs.values():
            stack.callback(run.end)
        with watch_others([run.pid for run in runs.values()]) as others:
            for turn in range(options.rounds + 1):
                for run in runs.values():
                    run.take_turn(options.updates, counts=turn > 0)
        _report(runs)
        print(f"other processes, the MLflow server among them, took {others.share:.0%} of the machine")


def _stores(server: int, stack: ExitStack) -> Mapping[str, str]:
    """The states of the store, and the address of each; empty for a run that is not tracked."""

    def wait(*_: str) -> Fault:
        time.sleep(SLOW_SECONDS)
        return "none"

    choices = {HEALTHY: lambda *_: "none", f"{SLOW_SECONDS:g} s an answer": wait, "status 500": lambda *_: "status 500"}
    stores = {}
    for state, choose_fault in choices.items():
        proxy = Proxy(free_port(), server)
        proxy.choose_fault = choose_fault
        stack.callback(proxy.close)
        stores[state] = proxy.uri
    return {**stores, "no server": f"http://127.0.0.1:{free_port()}", "not tracked": ""}


@contextmanager
def _mlflow_server(folder: Path) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    quiet = environment(MLFLOW_DISABLE_TELEMETRY="true", MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false")
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=quiet, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for_server(f"http://127.0.0.1:{port}/health", server, START_TIMEOUT)
        yield port
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@dataclass
class Run:
    """A training in a process of its own, which is stopped between its turns."""

    corpus: Path
    folder: Path
    uri: str
    seconds: list[float] = field(default_factory=list)  # of each update
    turns: list[float] = field(default_factory=list)  # mean seconds per update in each turn
    cpu: list[float] = field(default_factory=list)  # mean CPU seconds per update in each turn
    tracking: list[float] = field(default_factory=list)  # share of the tracker's threads in them

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self._worker = Worker(
            [sys.executable, "-m", __name__, str(self.corpus / "corpus"), str(self.folder), self.uri],
            environment(OMP_NUM_THREADS="1", WORLD_SIZE="1", RANK="0", LOCAL_RANK="0"),
        )
        self.pid = self._worker.pid

    def take_turn(self, updates: int, *, counts: bool) -> None:
        """Compute updates, then stop the process; the first turn, with the start, does not count."""
        process = psutil.Process(self.pid)
        process.resume()
        self._worker.send(updates)
        answer = self._worker.receive()
        process.suspend()
        if counts:
            spent, used, *seconds = map(float, answer.split())
            self.seconds += seconds
            self.turns.append(statistics.mean(seconds))
            self.cpu.append(spent / updates)
            self.tracking.append(used / spent)

    def end(self) -> None:
        """Kill the process."""
        self._worker.end(seconds=0)


def _report(runs: Mapping[str, Run]) -> None:
    healthy = runs[HEALTHY]
    for state, run in runs.items():
        median, cpu = statistics.median(run.seconds), statistics.median(run.cpu)
        share = statistics.median(run.tracking)
        print(f"  {state:15} {median:.4f} s, CPU time {cpu:.4f} s, of which threads of the tracker {share:.2%}")
    for state, run in runs.items():
        if run is healthy:
            continue
        found = ratios(run.turns, healthy.turns)
        spread = f"turns from {min(found):.3f} to {max(found):.3f}"
        updates = statistics.median(run.seconds) / statistics.median(healthy.seconds)
        cpu = median_ratio(run.cpu, healthy.cpu)
        what = f"{state} over a {HEALTHY}, time of a turn ({spread}; median update {updates:.3f}; CPU time {cpu:.3f})"
        print_at_most(what, statistics.median(found), BAR, ".3f")


class Turns(Tracker):
    """Lets the training compute as many updates as a line on stdin says, and prints the seconds of each."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        self._left = 0
        self._seconds: list[float] = []
        self._began = 0.0
        self._used = (0.0, 0.0)

    def emit(self, event: Event) -> None:
        """Take the time of an update, and wait for the next turn."""
        if not isinstance(event, TrainingProgress):
            return
        if self._left:
            self._seconds.append(time.perf_counter() - self._began)
            self._left -= 1
        if not self._left:
            if self._seconds:
                used = [after - before for after, before in zip(_cpu_seconds(), self._used, strict=True)]
                print(*used, *self._seconds, file=self._answers, flush=True)
            self._seconds = []
            line = sys.stdin.readline()
            if not line:
                os._exit(0)
            self._left, self._used = int(line), _cpu_seconds()
        self._began = time.perf_counter()


def _cpu_seconds() -> tuple[float, float]:
    """The CPU time of this process so far, and that of the threads of the tracker."""
    idents = [thread.ident for thread in threading.enumerate() if thread.name in ("mlflow-sender", "system-metrics")]
    clocks = [time.pthread_getcpuclockid(ident) for ident in idents if ident is not None]
    return time.process_time(), sum(map(time.clock_gettime, clocks))


def work(corpus_folder: Path, run: Path, uri: str) -> None:
    """Train in the folder ``run``, in turns, tracked in a store if one is given."""
    from dstransformer.training.build import build_engine, build_trainer
    from dstransformer.training.experiment import Experiment, TrainRequest
    from dstransformer.training.plan import Plan

    turns = Turns()
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed prints to stdout
        tracking = [f"tracking.uri={uri}"] if uri else ["tracking.enabled=false"]
        config = load_config("toy", [*SETTINGS, *tracking], ["zero1", "fp32"])
        world = join_world(read_processes(os.environ))
        corpus = Corpus.open(corpus_folder)
        experiment = Experiment.build(TrainRequest("toy", corpus_folder, run), config, corpus, 1)
        tracker = build_tracker(config.tracking, run_folder=run, max_updates=config.training.max_updates)
        tracker.add(turns)
        session = Session(world)
        trainer = build_trainer(experiment, build_engine(experiment, Plan(config), session), {}, tracker, session)
        tracker.emit(RunStart("outage", config, experiment.ds_config, corpus.manifest, corpus_folder))
        trainer.fit()


if __name__ == "__main__":
    work(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
