"""``dst table1``: measure the layer types of the paper's Table 1."""

from __future__ import annotations

import argparse

from dstransformer.cli.options import CommandResult, folder
from dstransformer.io.command import Commands

LENGTHS = (128, 256, 512, 1024, 2048)
WIDTHS = (64, 128, 256, 512, 1024)
QUICK_LENGTHS = (128, 256, 512, 1024)
QUICK_WIDTHS = (64, 128, 256)


def add_parser(commands: Commands) -> None:
    """Add the parser of ``dst table1``."""
    parser = commands.add_parser(
        "table1",
        help="measure time and memory of the paper's layer types (Table 1) and fit how they grow",
        examples=("dst table1 --out table1",),
    )
    parser.add_argument(
        "--out", type=folder, metavar="FOLDER", help="write table1.md, .json, .png and .svg there (print only)"
    )
    parser.add_argument("--lengths", type=int, nargs="+", metavar="n", help=f"sequence lengths ({_list(LENGTHS)})")
    parser.add_argument("--widths", type=int, nargs="+", metavar="d", help=f"widths of a position ({_list(WIDTHS)})")
    parser.add_argument(
        "--neighbourhood", type=int, default=32, metavar="r", help="window of restricted self-attention (32)"
    )
    parser.add_argument("--kernel", type=int, default=3, metavar="k", help="width of the convolution's kernel (3)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences (1)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (a GPU if there is one)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"lengths {_list(QUICK_LENGTHS)}, widths {_list(QUICK_WIDTHS)}, fewer repetitions: about 20 seconds",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier result in --out")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> CommandResult:
    """Measure, print the table and write the folder."""
    from dstransformer.decoding.devices import choose_device
    from dstransformer.extras.paper import table1_report
    from dstransformer.extras.paper.table1 import Settings, check_settings, measure_table1
    from dstransformer.extras.paper.table1_formulas import LAYER_TYPES
    from dstransformer.io.command import exit_on_sigterm
    from dstransformer.io.progress import reporting

    settings = Settings(
        lengths=tuple(sorted(options.lengths or (QUICK_LENGTHS if options.quick else LENGTHS))),
        widths=tuple(sorted(options.widths or (QUICK_WIDTHS if options.quick else WIDTHS))),
        neighbourhood=options.neighbourhood,
        kernel=options.kernel,
        batch=options.batch,
        repetitions=3 if options.quick else 5,
        device=choose_device(options.device),
    )
    check_settings(settings)
    if options.out is not None:
        table1_report.check_folder(options.out, overwrite=options.overwrite)
    exit_on_sigterm()
    total = len(LAYER_TYPES) * len(settings.lengths) * len(settings.widths)
    with reporting("measurements", total) as progress:
        table = measure_table1(settings, progress)
    if options.out is not None:
        table1_report.write_folder(table, options.out)
    return CommandResult(table1_report.markdown(table) + (f"\n{options.out}\n" if options.out else ""))


def _list(values: tuple[int, ...]) -> str:
    return " ".join(map(str, values))
