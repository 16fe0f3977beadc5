"""``python -m benchmarks.peers --data MULTI30K``: dstransformer beside its peers, on this machine's CPU.

The peers are installed from the package index into environments of their own below ``--cache``, at first use.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

from benchmarks.lib.machine import describe
from benchmarks.peers import training
from benchmarks.peers.systems import PEERS, build_systems
from benchmarks.peers.text import build_text
from dstransformer.distributed.world import usable_cores


def main() -> None:
    options = _parse()
    print(describe(), flush=True)
    systems = build_systems(options.peers, len(usable_cores()))
    for system in systems:
        system.prepare(options.cache.absolute())
    with tempfile.TemporaryDirectory(prefix="dst-bench-") as folder:
        text = build_text(options.data, Path(folder))
        bench = training.Bench(systems, text, options.rounds, options.seconds, options.patience)
        for model, precision in itertools.product(options.models, options.precisions):
            case = bench.run(model, precision)
            print(f"\n{training.format_case(case, text, systems)}\n", flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with {train,val}.{en,de} or .gz of Multi30k")
    parser.add_argument("--models", nargs="+", choices=training.MODELS, default=list(training.MODELS))
    parser.add_argument("--precisions", nargs="+", choices=training.PRECISIONS, default=list(training.PRECISIONS))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="that each measurement runs, at least")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine, each time")
    parser.add_argument("--cache", type=Path, default=Path(".bench"), help="where the peers' environments live")
    return parser.parse_args()


main()
