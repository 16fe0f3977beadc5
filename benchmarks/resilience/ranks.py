"""What the session costs beside the updates: processes that only vote and send heartbeats, with no model.

2 to 128 real processes on one machine join as for a training, and vote after every update of 0.3 s, which they sleep.
Of rank 0: the CPU of its vote, of its heartbeats and of the store; of the others, their mean; and what goes over the
loopback device. The last line extrapolates rank 0's to 1,024 ranks. How long a vote takes tells nothing of a cluster:
here all processes share the cores of one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from benchmarks.lib.bars import print_at_most
from benchmarks.lib.tables import format_table
from dstransformer.config import load_config
from dstransformer.distributed.launcher import Processes
from dstransformer.distributed.supervision.session import supervise
from dstransformer.distributed.world import free_port

UPDATE_SECONDS = 0.3

#: Of a thousand ranks, eight a node.
RANKS = 1024

_TICKS = os.sysconf("SC_CLK_TCK")

#: What the threads of a process are for, by their names; all others vote.
_THREADS = {"heartbeat": "heartbeats", "pt_tcpstore": "store"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--seconds", type=float, default=30.0, help="measured, after all have joined")


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    found = {count: measure(count, options.seconds) for count in options.ranks}
    rows = [
        f"{count} | {one['vote ms']:.2f} | {one['vote']:.2%} | {one['heartbeats']:.2%} | {one['store']:.2%} | "
        f"{one['others']:.2%} | {one['packets']:,.0f} | {one['bytes'] / 1e6:,.2f}"
        for count, one in found.items()
    ]
    columns = "ranks: | a vote, ms: | rank 0: vote: | heartbeats: | store: | other ranks: | packets/s: | MB/s:"
    print(format_table(columns, rows))
    if len(found) > 1:
        at_scale = {
            name: max(0.0, float(np.polyval(np.polyfit([*found], [one[name] for one in found.values()], 1), RANKS)))
            for name in ("vote", "heartbeats", "store")
        }
        print_at_most(f"rank 0 of {RANKS:,}, share of a core", sum(at_scale.values()), 0.5)


def measure(count: int, seconds: float) -> dict[str, float]:
    """The figures of ``count`` ranks, shares of a core a second."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(count):
            if (child := os.fork()) == 0:
                status = 1
                try:
                    _run(Processes(rank, rank, count), port, Path(folder), seconds)
                    status = 0
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        failed = [child for child in children if os.waitpid(child, 0)[1]]
        if failed:
            raise SystemExit(f"{len(failed)} of {count} processes failed")
        results = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(count)]
    others = [one["vote"] + one["heartbeats"] for one in results[1:]]
    return {**results[0], "others": statistics.fmean(others)}


def _run(processes: Processes, port: int, folder: Path, seconds: float) -> None:
    """Be one rank: join, vote after each update, and write what it took."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    config = load_config("base")
    with supervise(processes, config, folder / "run") as session:
        session.world.gather(processes.rank)
        began, before, network = time.monotonic(), _cpu(), _loopback()
        votes, step, ends = [], 0, False
        while not ends:
            time.sleep(UPDATE_SECONDS)
            step += 1
            session.report(step, "update")
            start = time.perf_counter()
            # The flag that a checkpoint is due stands for the end, on which all agree.
            ends = session.combine_flags(save=time.monotonic() - began > seconds, writing=False, nonfinite=False).save
            votes.append(time.perf_counter() - start)
        took = time.monotonic() - began
        after, sent = _cpu(), _loopback()
    shares = {name: (after[name] - before[name]) / took for name in ("vote", "heartbeats", "store")}
    packets, size = ((one - other) / took for one, other in zip(sent, network, strict=True))
    # The vote waits for the slowest sleeper: the fastest quarter tells what the vote itself takes.
    own = {"vote ms": 1000 * statistics.quantiles(votes, n=4)[0], "packets": packets, "bytes": size}
    (folder / f"{processes.rank}.json").write_text(json.dumps(shares | own))


def _cpu() -> dict[str, float]:
    """The seconds of CPU of this process's threads so far, by what they are for."""
    seconds: dict[str, float] = defaultdict(float)
    of_python = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    for task in Path("/proc/self/task").iterdir():
        name, _, fields = (task / "stat").read_text().partition("(")[2].rpartition(") ")
        name = of_python.get(task.name, name)
        purpose = next((what for begin, what in _THREADS.items() if name.startswith(begin)), "vote")
        values = fields.split()
        seconds[purpose] += (int(values[11]) + int(values[12])) / _TICKS
    return seconds


def _loopback() -> tuple[int, int]:
    """Packets and bytes that have gone over the loopback device."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    values = line.partition(":")[2].split()
    return int(values[1]), int(values[0])
