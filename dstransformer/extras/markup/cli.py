"""``dst translate --markup``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstransformer.io.flags import Options, option

if TYPE_CHECKING:
    from dstransformer.cli.translate import Translate
    from dstransformer.decoding import Translator


class Markup(Options):
    """What the extra adds."""

    markup: bool = option("lines have inline HTML or XML tags, which are put back into the translations")


def check_input(options: Translate) -> None:
    """Check the tags of FILE, before a model is loaded.

    Raises:
        DataError: Those of a line are not well-formed, or the file cannot be read.
    """
    from dstransformer.extras.markup.markup import parse_markup
    from dstransformer.io.text import iter_lines

    if options.markup and options.file not in (None, "-"):
        for number, line in enumerate(iter_lines(options.file), 1):
            parse_markup(line, f"{options.file}, line {number}")


def choose_translator(options: Translate) -> type[Translator]:
    """The class that translates, with the option sentences with tags."""
    from dstransformer.decoding import Translator
    from dstransformer.extras.markup.translator import MarkupTranslator

    return MarkupTranslator if options.markup else Translator
