"""``dst translate --markup``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dstransformer.io.command import CommandParser

if TYPE_CHECKING:
    from dstransformer.decoding import Translator


def add_options(parser: CommandParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--markup",
        action="store_true",
        help="lines have inline HTML or XML tags, which are put back into the translations",
    )


def choose_translator(options: argparse.Namespace) -> type[Translator]:
    """The class that translates, with the option sentences with tags.

    Raises:
        DataError: The tags of a line of FILE are not well-formed.
    """
    from dstransformer.decoding import Translator

    if not options.markup:
        return Translator
    from dstransformer.extras.markup.markup import check_markup
    from dstransformer.extras.markup.translator import MarkupTranslator

    if options.file not in (None, "-"):
        check_markup(options.file)
    return MarkupTranslator
