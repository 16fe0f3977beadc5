"""``python -m benchmarks.faults``: kills, stops and damages trainings, and checks that they end as undisturbed ones.

Exit status 1 if a run hung, complained, or is not what the undisturbed run is.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.faults.campaign import run_campaign
from benchmarks.faults.plan import PRECISIONS, STAGES, all_faults, plan_campaign
from benchmarks.faults.report import all_is_well, print_report, to_json
from benchmarks.peers.machine import describe


def main() -> int:
    options = _parse()
    from support.data.corpora import build_toy

    cases = plan_campaign(
        options.seed, options.faults, stages=options.stages, precisions=options.precisions, skip=options.skip
    )
    print(describe())
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dst-faults-", dir=options.folder) as name:
        folder = Path(name)
        corpus = build_toy(folder / "corpus", pairs=600)
        results = run_campaign(cases, corpus, folder, options.patience, _say, seconds=60 * options.minutes)
    print_report(results)
    print(f"{(time.monotonic() - began) / 60:.0f} minutes, seed {options.seed}")
    if options.json is not None:
        options.json.write_text(json.dumps(to_json(results, options.seed), indent=2) + "\n", encoding="utf-8")
    return 0 if all_is_well(results) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument(
        "--faults", type=int, default=250, help="number of faults planned (250); the moments of a few do not come"
    )
    parser.add_argument("--seed", type=int, default=1, help="decides all faults and their moments (1)")
    parser.add_argument("--stages", type=int, nargs="+", choices=STAGES, default=STAGES, help="ZeRO stages (all)")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="precisions (all)")
    names = [f"{kind}/{moment}" for kind, moment in all_faults()]
    parser.add_argument(
        "--skip", nargs="+", default=[], metavar="FAULT", help=f"leave out KIND or KIND/MOMENT: {', '.join(names)}"
    )
    parser.add_argument(
        "--patience", type=float, default=300.0, help="seconds after which a run that does nothing has hung (300)"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no further run after this time (no limit)"
    )
    parser.add_argument("--folder", type=Path, help="for runs and corpus, which are deleted at the end")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    options = parser.parse_args()
    known = {*names, *(name.partition("/")[0] for name in names)}
    if unknown := [name for name in options.skip if name not in known]:
        parser.error(f"--skip {unknown[0]}: no such fault")
    return options


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
