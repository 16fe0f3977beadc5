"""What the session costs beside the updates: processes that only vote and send heartbeats, with no model.

2 to 128 real processes on one machine join as for a training, and vote after every update of 0.3 s, which they sleep.
Of rank 0: the CPU of its vote, of its heartbeats and of the store; of the others, their mean; and what goes over the
loopback device. Rank 0's shares at 1,024 ranks are extrapolated linearly.

How long a vote takes here is no figure of a cluster, because all processes share the cores of one machine. So the same
is measured where every message of gloo waits 5 ms, which takes no core: how many of these a vote and a ring wait for,
one after the other, tells how long they take on a network of another latency.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.lib.bars import print_at_most
from benchmarks.lib.tables import format_table
from dstransformer.config import load_config
from dstransformer.distributed.launcher import Processes
from dstransformer.distributed.supervision.session import supervise
from dstransformer.distributed.world import free_port

SMOKE_OPTIONS = "--ranks 2 --seconds 1"
UPDATE_SECONDS = 0.3

#: Of a thousand ranks, eight a node.
RANKS = 1024

#: Seconds that a message waits where latency is measured, and in a data centre: TCP within it, one way.
DELAY, LATENCY = 5e-3, 50e-6

#: Votes of which the median counts.
VOTES = 9

COLUMNS = "ranks: | vote, ms: | ring, ms: | rank 0: vote: | heartbeats: | store: | other ranks: | packets/s: | MB/s:"

_TICKS = os.sysconf("SC_CLK_TCK")

#: What the threads of a process are for, by their names; all others vote.
_THREADS = {"heartbeat": "heartbeats", "pt_tcpstore": "store"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--seconds", type=float, default=30.0, help="measured, after all have joined")


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shim = Path(folder) / "delay.so"
        source = Path(__file__).with_name("delay.c")
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O2", "-o", shim, source, "-ldl"], check=True)
        delayed = {"LD_PRELOAD": str(shim), "DELAY_US": f"{1e6 * DELAY:.0f}"}
        found = {count: measure(count, options.seconds, {}) for count in options.ranks}
        late = {count: measure(count, 1.0, delayed) for count in options.ranks}
    rows = [
        f"{count} | {1e3 * one['vote s']:.2f} | {1e3 * one['ring s']:.2f} | "
        f"{one['vote']:.2%} | {one['heartbeats']:.2%} | {one['store']:.2%} | {one['others']:.2%} | "
        f"{one['packets']:,.0f} | {one['bytes'] / 1e6:,.2f}"
        for count, one in found.items()
    ]
    print(format_table(COLUMNS, rows))
    waits = {
        name: {count: (late[count][name] - found[count][name]) / DELAY for count in found}
        for name in ("vote s", "ring s")
    }
    print(f"\nmessages that one waits for in a row, by {1e3 * DELAY:g} ms each")
    rows = [f"{count} | {waits['vote s'][count]:.1f} | {waits['ring s'][count]:.1f}" for count in found]
    print(format_table("ranks: | vote: | ring:", rows))
    if len(found) > 1:
        shares = {name: {count: one[name] for count, one in found.items()} for name in ("vote", "heartbeats", "store")}
        at_scale = sum(max(0.0, _at_scale(of_ranks, float)) for of_ranks in shares.values())
        print_at_most(f"rank 0 of {RANKS:,}, share of a core", at_scale, 0.5)
        vote, ring = _at_scale(waits["vote s"], np.log2), _at_scale(waits["ring s"], float)
        print(f"of {RANKS:,} ranks, a vote waits for {vote:.0f} messages in a row, a ring for {ring:,.0f}")
        print_at_most(
            f"a vote of {RANKS:,} at {1e6 * LATENCY:g} µs each, share of an update of {UPDATE_SECONDS} s",
            vote * LATENCY / UPDATE_SECONDS,
            0.01,
        )


def _at_scale(of_ranks: dict[int, float], axis: Callable[[int], float]) -> float:
    """The figure of :data:`RANKS`, on a line through those of fewer."""
    line = np.polyfit([axis(count) for count in of_ranks], [*of_ranks.values()], 1)
    return float(np.polyval(line, axis(RANKS)))


def measure(count: int, seconds: float, variables: dict[str, str]) -> dict[str, float]:
    """The figures of ``count`` ranks: shares of a core a second, seconds of a vote."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", __spec__.name, str(count), str(seconds), folder]
        # A rank that leaves late finds no store to send its heartbeat to, and PyTorch says so.
        subprocess.run(command, env=os.environ | variables | {"TORCH_CPP_LOG_LEVEL": "ERROR"}, check=True)
        results = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(count)]
    others = [one["vote"] + one["heartbeats"] for one in results[1:]]
    return {**results[0], "others": statistics.fmean(others)}


def run_all(count: int, seconds: float, folder: Path) -> None:
    """Be the parent of all ranks."""
    torch.set_num_threads(1)
    port, children = free_port(), []
    for rank in range(count):
        if (child := os.fork()) == 0:
            status = 1
            try:
                _run(Processes(rank, rank, count), port, folder, seconds)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    if failed := [child for child in children if os.waitpid(child, 0)[1]]:
        raise SystemExit(f"{len(failed)} of {count} processes failed")


def _run(processes: Processes, port: int, folder: Path, seconds: float) -> None:
    """Be one rank: join, vote after each update, and write what it took."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    config = load_config("base")
    with supervise(processes, config, folder / "run") as session:
        session.world.gather(processes.rank)
        began, before, network = time.monotonic(), _cpu(), _loopback()
        step, ends = 0, False
        while not ends:
            time.sleep(UPDATE_SECONDS)
            step += 1
            session.report(step, "update")
            # The flag that a checkpoint is due stands for the end, on which all agree.
            ends = session.combine_flags(save=time.monotonic() - began > seconds, writing=False, nonfinite=False).save
        took = time.monotonic() - began
        after, sent = _cpu(), _loopback()
        flags = torch.zeros(4, dtype=torch.int32)
        vote = _time(lambda: session.world.any(False, False, False, False))
        ring = _time(lambda: session.world.all_reduce(flags))
    shares = {name: (after[name] - before[name]) / took for name in ("vote", "heartbeats", "store")}
    packets, size = ((one - other) / took for one, other in zip(sent, network, strict=True))
    own = {"vote s": vote, "ring s": ring, "packets": packets, "bytes": size}
    (folder / f"{processes.rank}.json").write_text(json.dumps(shares | own))


def _time(collective: Callable[[], object]) -> float:
    """The median of what a collective takes that all ranks begin at once."""
    taken = []
    for _ in range(VOTES):
        dist.barrier()
        began = time.perf_counter()
        collective()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


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


if __name__ == "__main__":
    run_all(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
