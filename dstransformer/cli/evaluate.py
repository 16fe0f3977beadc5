"""``dst evaluate``: translate a test set and score it, or score trees."""

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
    parser = commands.add_parser("evaluate", help="translate a test set and score it with sacrebleu, or score trees")
    add_decoding(parser, required=False)
    parser.add_argument(
        "--task", choices=("translation", "parsing"), default="translation", help="what is scored (translation)"
    )
    parser.add_argument("--src", metavar="FILE", help="source text, one sentence per line")
    parser.add_argument("--ref", metavar="FILE", help="reference translations, line by line")
    parser.add_argument("--gold", metavar="TREES", help="parsing: gold trees, a .mrg file, a folder or a pattern")
    parser.add_argument("--trees", metavar="TREES", help="parsing: any parser's trees of the same sentences")
    parser.add_argument("--gold-tags", action="store_true", help="parsing: score with the gold part-of-speech tags")
    parser.add_argument("--output", metavar="FILE", help="file for the translations, gzipped if it ends in .gz")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> Answer:
    """Evaluate a bundle on a test set, or score trees."""
    _check_options(options)
    if options.task == "parsing":
        return _score_trees(options)
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


_NEEDED = {"translation": ("bundle", "src", "ref"), "parsing": ("gold", "trees")}


def _check_options(options: argparse.Namespace) -> None:
    """Check that the options are those of the task.

    Raises:
        UserError: One is missing, or belongs to the other task.
    """
    names = {"bundle": "BUNDLE"}
    missing = [names.get(name, f"--{name}") for name in _NEEDED[options.task] if getattr(options, name) is None]
    if missing:
        raise UserError(f"--task {options.task} needs {', '.join(missing)}; see `dst evaluate --help`")
    other = "translation" if options.task == "parsing" else "parsing"
    surplus = [names.get(name, f"--{name}") for name in _NEEDED[other] if getattr(options, name) is not None]
    surplus += ["--gold-tags"] if options.gold_tags and other == "parsing" else []
    surplus += ["--output"] if options.output is not None and other == "translation" else []
    if surplus:
        raise UserError(f"--task {options.task} does not take {surplus[0]}, which is for --task {other}")


def _score_trees(options: argparse.Namespace) -> Answer:
    from dstransformer.parsing.brackets import score_files
    from dstransformer.parsing.trees import read_trees

    scores = score_files(read_trees(options.gold), read_trees(options.trees), gold_tags=options.gold_tags)
    return Answer(json.dumps(scores.to_json(), indent=2) if options.json else str(scores))


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
