"""``dst align``: word alignments of given translations."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dstransformer.cli.options import CommandResult, Commands, file, folder
from dstransformer.cli.score import add_scoring
from dstransformer.terminal.command import CommandParser, exit_on_sigterm

if TYPE_CHECKING:
    from dstransformer.decoding.aligner import Aligner


def add_parser(commands: Commands[CommandParser]) -> None:
    """Add the parser of ``dst align``."""
    parser = commands.add_parser("align", help="word alignments of given translations, pair by pair")
    parser.add_argument("bundle", metavar="BUNDLE", type=folder, help="folder of a bundle, a checkpoint or a run")
    parser.add_argument("--src", required=True, type=file, metavar="FILE", help="source text, one sentence per line")
    parser.add_argument("--tgt", required=True, type=file, metavar="FILE", help="its translation, line by line")
    parser.add_argument(
        "--output",
        type=file,
        metavar="FILE",
        help="file for the links, such as 0-0 1-2, gzipped if it ends in .gz; - is stdout (stdout)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --output")
    add_scoring(parser, "links")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> CommandResult:
    """Align the pairs of two files."""
    from dstransformer.decoding.aligner import Aligner, align_files
    from dstransformer.io.text import is_stdout
    from dstransformer.terminal.progress import reporting

    exit_on_sigterm()

    def load() -> Aligner:
        return Aligner.load(
            options.bundle,
            device=options.device,
            precision=options.precision,
            batch_tokens=options.batch_tokens,
            max_tokens=options.max_tokens,
        )

    printed = is_stdout(options.output)
    with reporting("pairs", bar=not printed) as progress:
        pairs = align_files(
            options.src, options.tgt, options.output, load, overwrite=options.overwrite, progress=progress
        )
    return CommandResult("" if printed else f"{options.output}: {pairs:,} pairs")
