"""``dst translate``: translate text, one sentence per line."""

from __future__ import annotations

import argparse
import sys

from dstransformer.cli.options import Answer, Commands, add_decoding, check_order, file, load_translator
from dstransformer.terminal import Parser, exit_on_sigterm


def add_parser(commands: Commands[Parser]) -> None:
    """Add the parser of ``dst translate``."""
    parser = commands.add_parser("translate", help="translate text, one sentence per line")
    add_decoding(parser)
    parser.add_argument("file", type=file, nargs="?", metavar="FILE", help="text or gzip file; - is stdin (stdin)")
    parser.add_argument(
        "--output",
        type=file,
        metavar="FILE",
        help="file for the translations, gzipped if it ends in .gz; - is stdout (stdout)",
    )
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> Answer:
    """Translate a file or standard input."""
    from dstransformer.decoding.commands import translate_files
    from dstransformer.progress import reporting

    exit_on_sigterm()
    check_order(options.bundle, options.file, "dst translate")
    bar = options.output not in (None, "-") or sys.stdout is None or not sys.stdout.isatty()
    with reporting("lines", bar=bar) as progress:
        translate_files(
            options.file,
            options.output,
            lambda: load_translator(options, options.bundle),
            overwrite=options.overwrite,
            progress=progress,
        )
    return Answer()
