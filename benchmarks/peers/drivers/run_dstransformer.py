"""dstransformer: ``dst train`` as a user starts it, under the ``deepspeed`` launcher where there are several ranks.

The clock is that of its ``metrics.jsonl``, a line an update. A run whose model is wanted is asked to stop by SIGTERM,
as a scheduler would do it; it writes a checkpoint then, as it did from time to time before.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.lib.machine import ROOT
from benchmarks.lib.processes import free_port
from benchmarks.peers.drivers.harness import MIN_UPDATES, Measurement, Request, warmed_up
from dstransformer.training.checkpoints.averaging import average_run
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder

#: Micro-batches of an update that a rank computes; one is the fastest where the memory allows it, as on a CPU.
ACCUMULATION = 1

#: Checkpoints that a run writes whose model is wanted, and how many of the last are averaged (section 6.1).
CHECKPOINTS, AVERAGED = 30, 5

#: The two models of such a run, below the folder that was asked for: the last checkpoint's, and the average.
LAST, AVERAGE = "last", "average"

#: Seconds that a run may take from the signal to its end.
_GRACE = 120.0


@dataclass(frozen=True)
class Launch:
    """Processes, threads of each, and what differs from the recipe of the request, as of ``dst train --set``."""

    ranks: int
    threads: int
    values: Sequence[str] = ()


def measure(request: Request, corpus: Path, launch: Launch, environment: Mapping[str, str]) -> Measurement:
    """Train; a wanted model is two, ``LAST`` and ``AVERAGE`` below ``request.model``."""
    run, log, port = Path(request.work) / "run", Path(request.work) / "log", free_port()
    command = [*_launcher(launch.ranks, port), *build_arguments(request, corpus, run, launch.ranks), *launch.values]
    variables = {"OMP_NUM_THREADS": str(launch.threads), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    with log.open("w") as output:
        process = subprocess.Popen(command, env={**environment, **variables}, stdout=output, stderr=output)
    try:
        if not request.model:
            return _read_metrics(run / "metrics.jsonl", request.seconds, process, log)
        done = _train(run, request.seconds, process, log)
    finally:
        _stop(process, port)
    _keep_models(run, Path(request.model))
    return done


def build_arguments(request: Request, corpus: Path, run: Path, ranks: int) -> list[str]:
    width = request.d_model // request.heads
    values = {
        "model.num_layers": request.layers,
        "model.d_model": request.d_model,
        "model.d_ff": request.d_ff,
        "model.num_heads": request.heads,
        "model.d_k": width,
        "model.d_v": width,
        "model.dropout": request.dropout,
        "loss.label_smoothing": request.label_smoothing,
        "batch.src_tokens": request.tokens,
        "batch.tgt_tokens": request.tokens,
        "batch.micro_batches": ranks * ACCUMULATION,
        "schedule.warmup_steps": request.warmup,
        "schedule.peak": request.peak_rate,
        "training.max_updates": 1_000_000,
        "training.log_every": 1,
        "validation.every": 0,
        "checkpoint.every_updates": 0,
        "checkpoint.every_minutes": request.seconds / 60 / CHECKPOINTS if request.model else 0,
        "checkpoint.keep_last": AVERAGED,
        "checkpoint.average_last": AVERAGED,
        "tracking.enabled": "false",
    }
    settings = [f"{name}={value}" for name, value in values.items()]
    where = ["--corpus", str(corpus), "--run", str(run), "--resume", "never"]
    # ZeRO 0, since dividing the optimizer's state saves memory, which is plenty here, and costs gathering the weights.
    return ["train", "base", *where, "--ds", "zero0", request.precision, "--set", *settings]


def _launcher(ranks: int, port: int) -> list[str]:
    if ranks == 1:
        return [sys.executable, "-m", "dstransformer"]
    deepspeed = str(Path(sys.executable).with_name("deepspeed"))
    return [deepspeed, "--num_gpus", str(ranks), "--master_port", str(port), "--module", "dstransformer"]


def _read_metrics(path: Path, seconds: float, process: subprocess.Popen[bytes], log: Path) -> Measurement:
    """Follow the file until the updates after the warm-up have taken long enough."""
    while True:
        _check(process, log)
        updates = _after_warm_up(_updates(path))[1:]
        took = sum((line["src_tokens"] + line["tgt_tokens"]) / line["tokens_per_second"] for line in updates)
        if len(updates) >= MIN_UPDATES and took >= seconds:
            src, tgt = (sum(line[f"{side}_tokens"] for line in updates) for side in ("src", "tgt"))
            return Measurement(len(updates), src, tgt, took)
        time.sleep(0.5)


def _train(run: Path, seconds: float, process: subprocess.Popen[bytes], log: Path) -> Measurement:
    """Let it train for so long after the warm-up, or until its last update, by the clock on the wall: what it writes
    meanwhile costs its time.
    """
    path = run / "metrics.jsonl"
    while not (warm := _after_warm_up(_updates(path))):
        _check(process, log)
        time.sleep(0.5)
    began = float(warm[0]["time"])
    while running := _check(process, log, may_end=True):
        if (left := began + seconds - time.time()) <= 0:
            break
        time.sleep(min(1.0, left))
    if running:
        for rank in _leaves(process):
            rank.send_signal(signal.SIGTERM)
        process.wait(_GRACE)
    updates = _after_warm_up(_updates(path))[1:]
    src, tgt = (sum(line[f"{side}_tokens"] for line in updates) for side in ("src", "tgt"))
    return Measurement(len(updates), src, tgt, updates[-1]["time"] - began)


def _keep_models(run: Path, folder: Path) -> None:
    checkpoints = CheckpointFolder(run / "checkpoints").checkpoints()
    folder.mkdir(parents=True)
    shutil.copytree(checkpoints[-1].bundle, folder / LAST)
    average_run(run, folder / AVERAGE, last=min(AVERAGED, len(checkpoints)), include_warmup=True)


def _check(process: subprocess.Popen[bytes], log: Path, *, may_end: bool = False) -> bool:
    """Whether it runs.

    Raises:
        SystemExit: It failed, or ended too early.
    """
    status = process.poll()
    if status is not None and not (may_end and status == 0):
        raise SystemExit(f"dstransformer ended too early, with exit code {status}:\n{log.read_text()[-3000:]}")
    return status is None


def _updates(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [record for record in map(json.loads, lines) if record["kind"] == "train"]


def _after_warm_up(updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """From the last update of the warm-up on, whose end starts the clock; none before that."""
    ends = [float(update["time"]) for update in updates]
    return next((updates[number:] for number in range(len(ends)) if warmed_up(ends[: number + 1])), [])


def _stop(process: subprocess.Popen[bytes], port: int) -> None:
    """Kill the ranks, for the run is not wanted; a launcher above them sees it, waits for them and ends too."""
    if process.poll() is None:
        tree = _tree(process)
        _kill(_leaves(process))
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            _kill(tree)
            process.wait()
    for buffer in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):
        buffer.unlink()


def _tree(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    launcher = psutil.Process(process.pid)
    return [launcher, *launcher.children(recursive=True)]


def _leaves(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The ranks."""
    return [member for member in _tree(process) if not member.children()]


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
