"""``dst attention``, ``dst table1``, ``dst table2`` and ``dst table3``: the paper's figures and tables, from here."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from typing import Annotated, Literal

from dstransformer.cli.options import Command, CommandResult, Folder, OneBundle, Overrides, Search, load_translator
from dstransformer.io.command import Stopped, exit_on_sigterm
from dstransformer.io.flags import argument, option


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


class Attention(
    Search,
    OneBundle,
    Command,
    examples=("dst attention runs/en-de 'the cat sleeps' --out attention.html",),
):
    """Draw the attention of a model for a sentence.

    Draws encoder self-attention, decoder self-attention and encoder-decoder attention as in Figures 3 to 5 of the
    paper. Layers and heads count from 1, as in its captions: layer 5 of 6 is the last but one.
    """

    sentence: str = argument("SENTENCE", "source sentence, in quotes")
    out: Folder = option("folder for pictures and page", "FOLDER", required=True)
    overwrite: bool = option("replace an existing --out")
    target: str | None = option("translation to draw the attention of (the model's own)", "SENTENCE")
    layer: int | None = option("layer of the pictures, from 1 (the last)", "N")
    heads: Annotated[tuple[int, ...], _numbers] = option("heads of the pictures, from 1 (all)", "N,N", default=())
    words: Annotated[tuple[str, ...], _names] = option("draw only the lines of these words", "W,W", default=())
    whole_words: bool = option("merge the pieces of each word")
    kind: Literal["encoder", "decoder", "cross"] | None = option("draw one kind of attention only")


@Attention.handler
def run_attention(options: Attention) -> CommandResult:
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


class Table1(Command, examples=("dst table1 --length 64 --width 512",)):
    """The paper's layer types (Table 1): their formulas at a size, and the measured time of one layer of each."""

    length: int = option("length of the sequence (512)", "n", default=512)
    width: int = option("width of a position (512)", "d", default=512)
    neighbourhood: int | None = option("window of restricted self-attention (32, or the length if it is less)", "r")
    kernel: int = option("width of the convolution's kernel (3)", "k", default=3)
    device: str | None = option("cpu, cuda, cuda:1 ... (a GPU if there is one)")


@Table1.handler
def run_table1(options: Table1) -> CommandResult:
    """Measure a layer of each type, and print the table."""
    from dstransformer.decoding.devices import choose_device
    from dstransformer.extras.paper.table1 import LAYER_TYPES, Size, build_table1, check_size
    from dstransformer.io.progress import reporting

    size = Size(options.length, options.width, options.kernel, options.neighbourhood or min(32, options.length))
    device = choose_device(options.device)
    check_size(size, device)
    exit_on_sigterm()
    with reporting("measurements", len(LAYER_TYPES)) as progress:
        return CommandResult(build_table1(size, device, progress))


def _tflops(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


class Table2(Command, examples=("dst table2 runs/base runs/big",)):
    """BLEU and training cost of runs beside the paper's Table 2."""

    runs: Sequence[Folder] = argument("RUN", "run folder")
    sustained_tflops: Annotated[float, _tflops] | None = option(
        "sustained TFLOPS of a device, for the cost by the paper's method (the paper's for K80, K40, M40, P100)", "T"
    )
    json: bool = option("print the table as JSON")


@Table2.handler
def run_table2(options: Table2) -> CommandResult:
    """Print the table."""
    from dstransformer.extras.paper.table2 import format_table, read_run, to_json

    results = [read_run(path, options.sustained_tflops) for path in options.runs]
    return CommandResult(json.dumps(to_json(results), indent=2) if options.json else format_table(results))


class Table3(
    Overrides,
    Command,
    in_processes=True,
    examples=("dst table3 --corpus corpora/en-de --out runs/table3 --rows base A1 A2",),
):
    """Train the variants of the paper's Table 3, one after the other or one per process of the launcher."""

    corpus: Folder = option("folder that dst-prep built", required=True)
    out: Folder = option("folder for runs and table; an unfinished table in it is resumed", required=True)
    rows: Sequence[str] = option("base, A to E, big, or names (all rows)", "ROW", default=())
    scale: str = option("paper, small, or a preset to vary in the same way (paper)", "SCALE", default="paper")
    updates: int | None = option("updates of base; big trains three times as many", "N")
    json: bool = option("print the table as JSON")


@Table3.handler
def run_table3(options: Table3) -> CommandResult:
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
