"""``dst parse``: parse text, one sentence per line (section 6.3)."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from dstransformer.cli.options import Answer, Commands, add_decoding, check_order, file, load_parser
from dstransformer.terminal import Parser, exit_on_sigterm

if TYPE_CHECKING:
    from dstransformer.decoding import Parser as ConstituencyParser


def add_parser(commands: Commands[Parser]) -> None:
    """Add the parser of ``dst parse``."""
    parser = commands.add_parser("parse", help="parse text, one sentence per line, into constituency trees")
    add_decoding(parser)
    parser.add_argument("file", type=file, nargs="?", metavar="FILE", help="text or gzip file; - is stdin (stdin)")
    parser.add_argument(
        "--tokenised",
        action="store_true",
        help="spaces separate the words; else English text is tokenised as Penn text",
    )
    parser.add_argument(
        "--output",
        type=file,
        metavar="FILE",
        help="file for the trees, gzipped if it ends in .gz; - is stdout (stdout)",
    )
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> Answer:
    """Parse a file or standard input."""
    from dstransformer.decoding.commands import translate_files
    from dstransformer.decoding.parser import given_words, penn_words
    from dstransformer.progress import reporting

    def load() -> ConstituencyParser:
        parser = load_parser(options, options.bundle)
        parser.split = given_words if options.tokenised else penn_words
        return parser

    exit_on_sigterm()
    check_order(options.bundle, options.file, "dst parse")
    bar = options.output not in (None, "-") or sys.stdout is None or not sys.stdout.isatty()
    with reporting("lines", bar=bar) as progress:
        translate_files(options.file, options.output, load, overwrite=options.overwrite, progress=progress)
    return Answer()
