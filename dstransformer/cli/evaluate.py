"""``dst evaluate``: translate a test set and score it."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dstransformer.cli.options import Answer, Commands, add_decoding, load_translator
from dstransformer.errors import UserError
from dstransformer.terminal import Parser, exit_on_sigterm

if TYPE_CHECKING:
    from dstransformer.model import Bundle

logger = logging.getLogger(__name__)


def add_parser(commands: Commands[Parser]) -> None:
    """Add the parser of ``dst evaluate``."""
    parser = commands.add_parser("evaluate", help="translate a test set and score it with sacrebleu")
    add_decoding(parser)
    parser.add_argument("--src", required=True, metavar="FILE", help="source text, one sentence per line")
    parser.add_argument("--ref", required=True, metavar="FILE", help="reference translations, line by line")
    parser.add_argument("--output", metavar="FILE", help="file for the translations, gzipped if it ends in .gz")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> Answer:
    """Evaluate a bundle on a test set."""
    from dstransformer.evaluation.testset import evaluate_test_set, read_test_set
    from dstransformer.model import open_bundle
    from dstransformer.progress import reporting

    exit_on_sigterm()
    sources, references = read_test_set(options.src, options.ref)
    with _writing_output(options) as write:
        bundle = open_bundle(options.bundle)
        _warn_of_swapped_sides(options, bundle)
        translator = load_translator(options, bundle)
        with reporting("sentences", len(sources)) as progress:
            evaluation = evaluate_test_set(
                sources,
                references,
                translator,
                language=bundle.tgt_lang,
                write=write,
                progress=progress,
            )
    search = translator.describe()
    if options.json:
        return Answer(json.dumps({**evaluation.to_json(), "bundle": str(bundle.path), **search}, indent=2))
    lines = [
        *map(str, evaluation.scores),
        f"{evaluation.sentences} sentences in {evaluation.seconds:.1f} s, beam {search['beam_size']}, "
        f"length penalty {search['length_penalty']}, {search['precision']} on {search['device']}",
    ]
    return Answer("\n".join(lines))


def _warn_of_swapped_sides(options: argparse.Namespace, bundle: Bundle) -> None:
    languages = (f".{bundle.tgt_lang}", f".{bundle.src_lang}")
    if tuple(Path(name.removesuffix(".gz")).suffix for name in (options.src, options.ref)) == languages:
        logger.warning(
            "--src %s is taken for %s and --ref %s for %s: are the sides swapped?",
            options.src, bundle.src_lang, options.ref, bundle.tgt_lang,
        )  # fmt: skip


@contextlib.contextmanager
def _writing_output(options: argparse.Namespace) -> Iterator[Callable[[str], None] | None]:
    """Open ``--output`` and yield a function that writes a translation to it; None without that option."""
    from dstransformer.textfiles import is_stdout, writing_lines

    if options.output is None:
        yield None
        return
    if is_stdout(options.output):
        raise UserError("--output - would mix the translations with the scores on stdout: name a file")
    with writing_lines(options.output, overwrite=options.overwrite, inputs=(options.src, options.ref)) as write:
        yield write
