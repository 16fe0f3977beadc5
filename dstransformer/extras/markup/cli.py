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


def check_input(options: argparse.Namespace) -> None:
    """Check the tags of FILE, before a model is loaded.

    Raises:
        DataError: Those of a line are not well-formed.
    """
    from dstransformer.extras.markup.markup import check_markup

    if options.markup and options.file not in (None, "-"):
        check_markup(options.file)


def choose_translator(options: argparse.Namespace) -> type[Translator]:
    """The class that translates, with the option sentences with tags."""
    from dstransformer.decoding import Translator
    from dstransformer.extras.markup.translator import MarkupTranslator

    return MarkupTranslator if options.markup else Translator
