"""``dst attention``, ``dst table1``, ``dst table2`` and ``dst table3``: the paper's figures and tables, from here."""

from __future__ import annotations

import argparse
import json
import math
import os

from dstransformer.cli.options import CommandResult, add_decoding, add_overrides, folder, load_translator
from dstransformer.io.command import Commands, Stopped, exit_on_sigterm


def add_parser(commands: Commands) -> None:
    """Add the parsers of the commands."""
    _add_attention(commands)
    _add_table1(commands)
    _add_table2(commands)
    _add_table3(commands)


def _add_attention(commands: Commands) -> None:
    parser = commands.add_parser(
        "attention",
        help="draw the attention of a model for a sentence",
        description="Draws encoder self-attention, decoder self-attention and encoder-decoder attention as in Figures "
        "3 to 5 of the paper. Layers and heads count from 1, as in its captions: layer 5 of 6 is the last but one.",
        examples=("dst attention runs/en-de 'the cat sleeps' --out attention.html",),
    )
    add_decoding(parser, output="--out")
    parser.add_argument("sentence", metavar="SENTENCE", help="source sentence, in quotes")
    parser.add_argument("--out", required=True, type=folder, metavar="FOLDER", help="folder for pictures and page")
    parser.add_argument("--target", metavar="SENTENCE", help="translation to draw the attention of (the model's own)")
    parser.add_argument("--layer", type=int, metavar="N", help="layer of the pictures, from 1 (the last)")
    parser.add_argument("--heads", type=_numbers, default=(), metavar="N,N", help="heads of the pictures, from 1 (all)")
    parser.add_argument("--words", type=_names, default=(), metavar="W,W", help="draw only the lines of these words")
    parser.add_argument("--whole-words", action="store_true", help="merge the pieces of each word")
    parser.add_argument("--kind", choices=("encoder", "decoder", "cross"), help="draw one kind of attention only")
    parser.set_defaults(handler=run_attention)


def run_attention(options: argparse.Namespace) -> CommandResult:
    """Draw the attention."""
    from dstransformer.extras.paper.attention import KINDS, PAGE, WEIGHTS, Selection, draw_attention
    from dstransformer.model import open_bundle

    exit_on_sigterm()
    bundle = open_bundle(options.bundle)
    kinds = KINDS if options.kind is None else (options.kind,)
    drawn = draw_attention(
        bundle,
        lambda: load_translator(options, bundle),
        options.sentence,
        options.out,
        Selection(options.layer, options.heads, options.words, kinds, options.whole_words),
        target=options.target,
        overwrite=options.overwrite,
    )
    heads = ("head " if len(drawn.heads) == 1 else "heads ") + ", ".join(map(str, drawn.heads))
    what = f"{drawn.pictures} pictures of {drawn.layer}, {heads}"
    lines = [f"{drawn.source} → {drawn.target}", f"{options.out}: {PAGE}, {WEIGHTS} and {what}"]
    if drawn.without_lines:
        lines.append(f"no lines for {' and '.join(drawn.without_lines)}: none of the words of --words is on that side")
    return CommandResult("\n".join(lines))


def _numbers(text: str) -> tuple[int, ...]:
    """The type of ``--heads``."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not numbers with commas, as in 5,6") from None


def _names(text: str) -> tuple[str, ...]:
    """The type of ``--words``."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not words with commas, as in its,law")
    return names


def _add_table1(commands: Commands) -> None:
    parser = commands.add_parser(
        "table1",
        help="the paper's layer types (Table 1): their formulas at a size, and the measured time of one layer of each",
        examples=("dst table1 --length 64 --width 512",),
    )
    parser.add_argument("--length", type=int, default=512, metavar="n", help="length of the sequence (512)")
    parser.add_argument("--width", type=int, default=512, metavar="d", help="width of a position (512)")
    parser.add_argument(
        "--neighbourhood", type=int, default=32, metavar="r", help="window of restricted self-attention (32)"
    )
    parser.add_argument("--kernel", type=int, default=3, metavar="k", help="width of the convolution's kernel (3)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (a GPU if there is one)")
    parser.set_defaults(handler=run_table1)


def run_table1(options: argparse.Namespace) -> CommandResult:
    """Measure a layer of each type, and print the table."""
    from dstransformer.decoding.devices import choose_device
    from dstransformer.extras.paper.table1 import LAYER_TYPES, Size, build_table1, check_size
    from dstransformer.io.progress import reporting

    size = Size(options.length, options.width, options.kernel, options.neighbourhood)
    device = choose_device(options.device)
    check_size(size, device)
    exit_on_sigterm()
    with reporting("measurements", len(LAYER_TYPES)) as progress:
        return CommandResult(build_table1(size, device, progress))


def _add_table2(commands: Commands) -> None:
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
    parser.set_defaults(handler=run_table2)


def run_table2(options: argparse.Namespace) -> CommandResult:
    """Print the table."""
    from dstransformer.extras.paper.table2 import format_table, read_run, to_json

    results = [read_run(path, options.sustained_tflops) for path in options.runs]
    return CommandResult(json.dumps(to_json(results), indent=2) if options.json else format_table(results))


def _tflops(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _add_table3(commands: Commands) -> None:
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
    add_overrides(parser, "override values of all rows", "DeepSpeed fragments of all rows, not the presets'")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.set_defaults(handler=run_table3, in_processes=True)


def run_table3(options: argparse.Namespace) -> CommandResult:
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
    text = json.dumps(table.to_json(), indent=2) if options.json else to_markdown(table).rstrip()
    return CommandResult(text, int(run.failed()))
