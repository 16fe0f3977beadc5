"""``dst evaluate``: translate or parse a test set and score it."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dstransformer.cli.options import Answer, Commands, add_decoding, file, load_parser, load_translator
from dstransformer.errors import UserError
from dstransformer.terminal import Parser, exit_on_sigterm

if TYPE_CHECKING:
    from dstransformer.model import Bundle
    from dstransformer.parsing.brackets import Tags

logger = logging.getLogger(__name__)


def add_parser(commands: Commands[Parser]) -> None:
    """Add the parser of ``dst evaluate``."""
    parser = commands.add_parser(
        "evaluate", help="translate a test set and score it with sacrebleu, or parse one and score its brackets"
    )
    add_decoding(parser, required=False)
    parser.add_argument(
        "--task", choices=("translation", "parsing"), default="translation", help="what is scored (translation)"
    )
    parser.add_argument("--src", type=file, metavar="FILE", help="source text, one sentence per line")
    parser.add_argument("--ref", type=file, metavar="FILE", help="reference translations, line by line")
    parser.add_argument(
        "--gold", type=file, metavar="TREES", help="parsing: gold trees, a .mrg file, a folder or a pattern"
    )
    parser.add_argument(
        "--trees",
        type=file,
        metavar="TREES",
        help="parsing: any parser's trees of the same sentences, in place of BUNDLE",
    )
    parser.add_argument(
        "--tags",
        choices=("parsed", "punctuation", "gold"),
        help="parsing: what is punctuation is decided by the parser's tags, by the gold ones, or all tags are the gold "
        "ones (punctuation for BUNDLE, parsed for --trees)",
    )
    parser.add_argument("--output", type=file, metavar="FILE", help="file for the outputs, gzipped if it ends in .gz")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> Answer:
    """Evaluate a bundle on a test set, or score trees."""
    _check_options(options)
    if options.task == "parsing":
        return _score_trees(options) if options.bundle is None else _parse_and_score(options)
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


_NEEDED = {"translation": ("bundle", "src", "ref"), "parsing": ("gold",)}
_TAKEN = {"translation": {"bundle", "src", "ref", "output"}, "parsing": {"bundle", "gold", "trees", "tags", "output"}}


def _check_options(options: argparse.Namespace) -> None:
    """Check that the options are those of the task.

    Raises:
        UserError: One is missing, or belongs to the other task.
    """
    names = {"bundle": "BUNDLE"}
    other = "translation" if options.task == "parsing" else "parsing"
    given = {name for name in _TAKEN[other] | _TAKEN[options.task] if getattr(options, name) is not None}
    surplus = [f"--{name}" for name in sorted(given - _TAKEN[options.task])]
    if surplus:
        raise UserError(f"--task {options.task} does not take {surplus[0]}, which is for --task {other}")
    missing = [names.get(name, f"--{name}") for name in _NEEDED[options.task] if name not in given]
    if options.task == "parsing" and not given & {"bundle", "trees"}:
        missing.append("BUNDLE or --trees")
    if missing:
        raise UserError(f"--task {options.task} needs {', '.join(missing)}; see `dst evaluate --help`")
    searching = (
        "beam",
        "length_penalty",
        "max_input_tokens",
        "max_extra_tokens",
        "batch_tokens",
        "device",
        "precision",
    )
    unused = [name for name in searching if options.trees is not None and getattr(options, name) is not None]
    if unused:
        raise UserError(f"--trees and --{unused[0].replace('_', '-')} do not go together: these trees are only scored")
    if options.task == "parsing" and options.trees is not None and given & {"bundle", "output"}:
        both = names.get("bundle") if "bundle" in given else "--output"
        raise UserError(f"--trees and {both} do not go together: score either these trees or those of a bundle")


def _score_trees(options: argparse.Namespace) -> Answer:
    from dstransformer.parsing.brackets import score_files
    from dstransformer.parsing.trees import read_trees

    scores = score_files(read_trees(options.gold), read_trees(options.trees), options.tags or "parsed")
    return Answer(json.dumps(scores.to_json(), indent=2) if options.json else str(scores))


def _parse_and_score(options: argparse.Namespace) -> Answer:
    from dstransformer.evaluation.treebank import evaluate_treebank
    from dstransformer.model import open_bundle
    from dstransformer.parsing.trees import read_trees
    from dstransformer.progress import reporting

    exit_on_sigterm()
    gold = read_trees(options.gold)
    with _writing_output(options) as write:
        bundle = open_bundle(options.bundle)
        parser = load_parser(options, bundle)
        if parser.trees.tags != "keep" and options.tags not in (None, "gold"):
            raise UserError(f"--tags {options.tags}: {bundle.path} writes no tags; leave it out, or give --tags gold")
        with reporting("sentences", len(gold)) as progress:
            tags: Tags = options.tags or "punctuation"
            found = evaluate_treebank(gold, parser, tags=tags, write=write, progress=progress)
    search = parser.describe()
    if options.json:
        record = {**found.scores.to_json(), "seconds": found.seconds, "bundle": str(bundle.path), **search}
        return Answer(json.dumps(record, indent=2))
    return Answer(
        f"{found.scores}\n{len(gold)} sentences in {found.seconds:.1f} s, beam {search['beam_size']}, "
        f"length penalty {search['length_penalty']}, {search['precision']} on {search['device']}"
    )


def _warn_of_swapped_sides(options: argparse.Namespace, bundle: Bundle) -> None:
    languages = (f".{bundle.tgt_lang}", f".{bundle.src_lang}")
    if tuple(Path(name.removesuffix(".gz")).suffix for name in (options.src, options.ref)) == languages:
        logger.warning(
            "--src %s is taken for %s and --ref %s for %s: are the sides swapped?",
            options.src, bundle.src_lang, options.ref, bundle.tgt_lang,
        )  # fmt: skip


@contextlib.contextmanager
def _writing_output(options: argparse.Namespace) -> Iterator[Callable[[str], None] | None]:
    """Open ``--output`` and yield a function that writes an output to it; None without that option."""
    from dstransformer.parsing.trees import find_tree_files
    from dstransformer.textfiles import is_stdout, writing_lines

    if options.output is None:
        yield None
        return
    if is_stdout(options.output):
        raise UserError("--output - would mix the outputs with the scores on stdout: name a file")
    inputs = [name for name in (options.src, options.ref) if name is not None]
    inputs += [] if options.gold is None else map(str, find_tree_files(options.gold))
    with writing_lines(options.output, overwrite=options.overwrite, inputs=inputs) as write:
        yield write
