"""``dst translate``: translate text, one sentence per line."""

from __future__ import annotations

import argparse

from dstransformer.cli.options import Answer, Commands, add_decoding, add_lines, decode_lines, load_translator
from dstransformer.terminal import Parser, exit_on_sigterm


def add_parser(commands: Commands[Parser]) -> None:
    """Add the parser of ``dst translate``."""
    parser = commands.add_parser("translate", help="translate text, one sentence per line")
    add_decoding(parser)
    add_lines(parser, "translations")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> Answer:
    """Translate a file or standard input."""
    exit_on_sigterm()
    return decode_lines(options, lambda: load_translator(options, options.bundle))
