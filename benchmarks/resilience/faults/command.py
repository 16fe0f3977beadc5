"""Kills, stops and damages trainings, and checks that they end as undisturbed ones.

The exit status is 1 if a run hung, ended in a way that was not promised, or differs from the undisturbed run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.resilience.faults.campaign import run_campaign
from benchmarks.resilience.faults.plan import PRECISIONS, STAGES, plan_campaign
from benchmarks.resilience.faults.report import all_is_well, print_report

SMOKE_OPTIONS = "--faults 1 --stages 1 --precisions fp32"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--faults", type=int, default=250, help="number of faults planned (250); some do not find their moment"
    )
    parser.add_argument("--seed", type=int, default=1, help="decides all faults and their moments (1)")
    parser.add_argument("--stages", type=int, nargs="+", choices=STAGES, default=STAGES, help="ZeRO stages (all)")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="precisions (all)")
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="a run without progress for so long has hung (300)"
    )
    parser.add_argument("--folder", type=Path, help="for runs and corpus, which are deleted at the end")


def main(options: argparse.Namespace) -> int:
    from support.data.corpora import build_toy

    cases = plan_campaign(options.seed, options.faults, stages=options.stages, precisions=options.precisions)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dst-faults-", dir=options.folder) as name:
        folder = Path(name)
        corpus = build_toy(folder / "corpus", pairs=600)
        results = run_campaign(cases, corpus, folder, options.timeout, _log)
    print_report(results)
    print(f"{(time.monotonic() - began) / 60:.0f} minutes, seed {options.seed}")
    return 0 if all_is_well(results) else 1


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
