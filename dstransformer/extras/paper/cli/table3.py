"""``dst table3``: train the variants of Table 3 and print the table with the paper's figures beside ours."""

from __future__ import annotations

import argparse
import json
import os

from dstransformer.cli.options import CommandResult, folder
from dstransformer.io.command import Commands, Stopped


def add_parser(commands: Commands) -> None:
    """Add the parser of ``dst table3``."""
    parser = commands.add_parser(
        "table3",
        help="train the variants of the paper's Table 3, one after the other or one per process of the launcher",
        examples=("dst table3 --corpus corpora/en-de --out runs/table3 --rows base A1 A2",),
    )
    parser.add_argument("--corpus", required=True, type=folder, help="folder that dst-prep built")
    parser.add_argument(
        "--out", required=True, type=folder, help="folder for runs and table; an unfinished table in it is resumed"
    )
    parser.add_argument("--rows", nargs="+", default=[], metavar="ROW", help="base, A to E, big, or names (all rows)")
    parser.add_argument(
        "--scale",
        default="paper",
        metavar="SCALE",
        help="paper, small, or a preset to vary in the same way (paper)",
    )
    parser.add_argument("--updates", type=int, metavar="N", help="updates of base; big trains three times as many")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override values of all rows"
    )
    parser.add_argument(
        "--ds", action="append", default=[], metavar="NAME", help="DeepSpeed fragments of all rows, not the presets'"
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> CommandResult:
    """Train the rows. Rank 0 prints the table when all rows have ended."""
    from dstransformer.distributed.launcher import check_environment, read_processes
    from dstransformer.errors import DstError, UserError
    from dstransformer.extras.paper.table3 import TableRequest, TableRun
    from dstransformer.extras.paper.table3_report import to_markdown

    if options.updates is not None and options.updates < 1:
        raise UserError(f"--updates {options.updates}: give 1 or more")
    check_environment(os.environ)
    processes = read_processes(os.environ)
    request = TableRequest(
        corpus=options.corpus,
        out=options.out,
        rows=options.rows,
        scale=options.scale,
        updates=options.updates,
        overrides=options.overrides,
        fragments=options.ds,
    )
    try:
        run = TableRun(request, processes)
        table = run.run()
    except Stopped as stop:
        return CommandResult("stopped by a signal; run the same command to resume", 128 + stop.number)
    except DstError as error:
        error.rank = processes.rank  # each worker has its own
        raise
    if processes.rank != 0:  # a launcher would end the other workers for a status other than 0
        return CommandResult()
    failed = any(result.status == "failed" for result in run.results().values())
    text = json.dumps(table.to_json(), indent=2) if options.json else to_markdown(table).rstrip()
    return CommandResult(text, 1 if failed else 0)
