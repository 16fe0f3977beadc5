"""``dst translate``: translate text, one sentence per line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from dstransformer.cli.options import (
    ADDITIONS,
    Command,
    CommandResult,
    EngineOptions,
    File,
    Folder,
    Lines,
    Target,
    Text,
    decode_lines,
    load_ct2,
    load_translator,
    uses_ct2,
)
from dstransformer.errors import DataError, UserError
from dstransformer.io.command import exit_on_sigterm
from dstransformer.io.flags import option

if TYPE_CHECKING:
    from dstransformer.decoding import Translator
    from dstransformer.decoding.formats import Request

#: What adds to the command: ``Markup``, its options, ``check_input``, and ``choose_translator``, the class for them.
_ADDED = import_module(ADDITIONS["translate"])


class Translate(
    _ADDED.Markup,  # type: ignore[misc,name-defined]
    Target,
    EngineOptions,
    Lines,
    Command,
    in_processes=True,
    examples=(
        "dst translate runs/en-de test.en --output test.de",
        "echo 'the cat sleeps' | dst translate runs/en-de",
    ),
):
    """Translate text, one sentence per line."""

    ensemble: Sequence[Folder] = option(
        "another model with the same tokenizer, whose probabilities are averaged with the others'; repeatable",
        "BUNDLE",
        action="append",
        default=(),
    )
    n_best: int = option("translations per line (1)", "N", default=1)
    distinct: bool = option(
        "with --n-best: of equal texts only the best, so that there may be fewer than N (not for --mbr)"
    )
    format: Literal["text", "tsv", "jsonl", "pairs"] = option(
        "text; tsv: line, rank, score, log-probability, text; jsonl; pairs: translation, tab, line (text)",
        default="text",
    )
    tag: Text = option("with pairs: a word before each translation", "WORD", default="")
    prefix: Text = option("what every translation begins with", "TEXT", default="")
    prefix_file: File | None = option("what each translation begins with, by line", "FILE")
    sample: bool = option("draw translations instead of searching for the best")
    temperature: float | None = option("with --sample: divides the logits (1)", "T")
    top_k: int | None = option("with --sample: draw among the K best pieces (all)", "K")
    top_p: float | None = option("with --sample: draw among the best of this mass (1)", "P")
    seed: int | None = option("with --sample: another seed draws other translations (1)", "N")
    alignments: File | None = option("also write the word alignments of the outputs, such as 0-0 1-2", "FILE")
    split: bool = option(
        "lines are texts of several sentences: divide them, translate these, and keep spaces and line ends"
    )
    interactive: bool = option("prompt for sentences, and show scores")


@Translate.handler
def run(options: Translate) -> CommandResult:
    """Translate a file or standard input."""
    exit_on_sigterm()
    request = _read_request(options)
    load = partial(_load, options, request)
    if options.interactive:
        if options.file or options.output or options.prefix_file or options.resume:
            raise UserError("--interactive reads sentences from the terminal: leave out FILE and files of options")
        if options.format != "text" or options.overwrite or options.alignments:
            raise UserError("--interactive shows scores and texts: leave out --format, --overwrite and --alignments")
        return _converse(load(), request)
    return decode_lines(options, load, request, alignments=options.alignments)


def _load(options: Translate, request: Request) -> Translator:
    """The translator of the chosen engine.

    Raises:
        UserError: The engine does not support a given option.
    """
    if not uses_ct2(options):
        _ADDED.check_input(options)
        kind = partial(_ADDED.choose_translator, options)
        translator: Translator = load_translator(options, options.bundle, kind=kind)
        return translator
    lacking = {
        "--markup": options.markup,
        "--prune": options.prune,
        "--ensemble": options.ensemble,
        "--sample": request.sampling,
        "--alignments": options.alignments,
    }
    for name, value in lacking.items():
        if value:
            raise UserError(f"{name} is not available with --engine ct2: leave it out, or use --engine torch")
    from dstransformer.io.products import export_tool
    from dstransformer.model import open_bundle

    is_export = export_tool(options.bundle) == "ct2"
    return load_ct2(options, options.bundle if is_export else open_bundle(options.bundle))


def _read_request(options: Translate) -> Request:
    """What to write for each line, from the options.

    Raises:
        UserError: An option of sampling without ``--sample``, or one of the search with it.
        ConfigError: A value is out of bounds.
    """
    from dstransformer.decoding.formats import Request, Sampling

    names = ("temperature", "top_k", "top_p", "seed")
    settings = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if settings and not options.sample:
        raise UserError(f"--{next(iter(settings)).replace('_', '-')} is for drawing: add --sample")
    searching = [name for name in ("beam", "prune") if getattr(options, name) is not None]
    if options.sample and searching:
        raise UserError(f"--{searching[0]} is for the search, and --sample draws: leave one out")
    sampling = Sampling(**settings) if options.sample else None
    return Request(
        n_best=options.n_best,
        sampling=sampling,
        prefix=options.prefix,
        prefix_file=options.prefix_file,
        format=options.format,
        tag=options.tag,
        distinct=options.distinct,
        split=options.split,
    )


def _converse(translator: Translator, request: Request) -> CommandResult:
    """Translate each sentence that is typed, until the input ends.

    Raises:
        DataError: The input is closed, or not UTF-8.
    """
    import readline  # noqa: F401  (line editing and history)

    if sys.stdin is None:
        raise DataError("standard input is closed: --interactive reads sentences from it")
    number = 0
    while True:
        number += 1
        try:
            line = input("> " if sys.stdin.isatty() else "")
            line.encode()  # what is not UTF-8 may arrive as surrogates
        except EOFError:
            return CommandResult()
        except UnicodeError:
            raise DataError(f"standard input, line {number}: not UTF-8") from None
        prefixes = [request.prefix] if request.prefix else None
        outputs = translator.search([line], prefixes=prefixes, first=number, **request.arguments())[0]
        for output in request.choose(outputs):
            print(f"{output.score:8.4f}  {output.text}" if line.strip() else "", flush=True)
