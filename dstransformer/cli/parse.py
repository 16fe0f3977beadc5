"""``dst parse``: parse text, one sentence per line (section 6.3)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dstransformer.cli.options import CommandResult, add_decoding, add_lines, decode_lines, load_parser
from dstransformer.io.command import Commands, exit_on_sigterm

if TYPE_CHECKING:
    from dstransformer.decoding import Parser


def add_parser(commands: Commands) -> None:
    """Add the parser of ``dst parse``."""
    parser = commands.add_parser(
        "parse",
        help="parse text, one sentence per line, into constituency trees",
        examples=("dst parse runs/parser sentences.txt --output trees.txt",),
    )
    add_decoding(parser)
    add_lines(parser, "trees")
    parser.add_argument(
        "--tokenised", action="store_true", help="spaces separate the words; else English text is tokenised"
    )
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> CommandResult:
    """Parse a file or standard input."""
    from dstransformer.decoding.parser import given_words, penn_words

    def load() -> Parser:
        parser = load_parser(options, options.bundle)
        parser.split = given_words if options.tokenised else penn_words
        return parser

    exit_on_sigterm()
    return decode_lines(options, load, extra={"tokenised": options.tokenised})
