"""``dst table2``: BLEU and training cost of runs beside the paper's Table 2."""

from __future__ import annotations

import argparse
import json
import math

from dstransformer.cli.options import CommandResult, folder
from dstransformer.io.command import Commands


def add_parser(commands: Commands) -> None:
    """Add the parser of ``dst table2``."""
    parser = commands.add_parser(
        "table2",
        help="BLEU and training cost of runs beside the paper's Table 2",
        examples=("dst table2 runs/base runs/big",),
    )
    parser.add_argument("runs", nargs="+", type=folder, metavar="RUN", help="run folder")
    parser.add_argument(
        "--sustained-tflops",
        type=_tflops,
        metavar="T",
        help="sustained TFLOPS of a device, for the cost by the paper's method (the paper's for K80, K40, M40, P100)",
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> CommandResult:
    """Print the table."""
    from dstransformer.extras.paper.table2 import format_table, read_run, to_json

    results = [read_run(path, options.sustained_tflops) for path in options.runs]
    return CommandResult(json.dumps(to_json(results), indent=2) if options.json else format_table(results))


def _tflops(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
