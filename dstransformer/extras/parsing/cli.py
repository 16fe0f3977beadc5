"""``dst parse``, and ``dst evaluate --task parsing``."""

from __future__ import annotations

import json
import time
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Literal

from dstransformer.cli.options import Command, CommandResult, File, Lines, decode_lines, load_translator
from dstransformer.errors import DataError, UserError, counted
from dstransformer.io.command import exit_on_sigterm
from dstransformer.io.flags import Options, option

if TYPE_CHECKING:
    from dstransformer.cli.evaluate_options import Evaluate
    from dstransformer.extras.parsing.brackets import Tags
    from dstransformer.extras.parsing.parser import Parser, RawTextParser

#: Where the parser is; importing it takes seconds.
_PARSER = "dstransformer.extras.parsing.parser"

TASK = "parsing"

#: The options that the task takes, without those of the search.
OPTIONS = {"bundle", "gold", "trees", "tags", "output"}


class Parse(
    Lines,
    Command,
    in_processes=True,
    examples=("dst parse runs/parser sentences.txt --output trees.txt",),
):
    """Parse text, one sentence per line, into constituency trees."""

    output: File | None = option("file for the trees, gzipped if it ends in .gz; - is stdout (stdout)", "FILE")
    tokenised: bool = option("spaces separate the words; else English text is tokenised")


@Parse.handler
def _parse(options: Parse) -> CommandResult:
    """Parse a file or standard input."""

    def load() -> Parser:
        kind = partial(resolve_name, f"{_PARSER}:RawTextParser")
        parser: RawTextParser = load_translator(options, options.bundle, kind=kind)
        if options.tokenised:
            parser.split = resolve_name(f"{_PARSER}:given_words")
        return parser

    exit_on_sigterm()
    return decode_lines(options, load, extra={"tokenised": options.tokenised})


class TaskOptions(Options):
    """The options that only this task has."""

    gold: File | None = option("parsing: gold trees, a .mrg file, a folder or a pattern", "TREES")
    trees: File | None = option("parsing: any parser's trees of the same sentences, in place of BUNDLE", "TREES")
    tags: Literal["parsed", "punctuation", "gold"] | None = option(
        "parsing: the parser's tags decide what is punctuation, or the gold tags do, or all tags are replaced by the "
        "gold ones (punctuation for BUNDLE, parsed for --trees)"
    )


def check_options(options: Evaluate, given: set[str]) -> None:
    """Check that options of :data:`OPTIONS`, of which these are given, go together.

    Raises:
        UserError: They do not, or one is missing.
    """
    from dstransformer.cli.evaluate_options import option_of, search_options

    missing = [] if "gold" in given else ["--gold"]
    if not given & {"bundle", "trees"}:
        missing.append("BUNDLE or --trees")
    if missing:
        raise UserError(f"--task parsing needs {', '.join(missing)}; see `dst evaluate --help`")
    if len(options.bundle or []) > 1:
        raise UserError("--task parsing takes one BUNDLE")
    if options.trees is not None and (unused := search_options(options)):
        raise UserError(f"--trees and {option_of(unused[0])} do not go together: these trees are only scored")
    if options.trees is not None and given & {"bundle", "output"}:
        both = "BUNDLE" if "bundle" in given else "--output"
        raise UserError(f"--trees and {both} do not go together: score either these trees or those of a bundle")


def run(options: Evaluate) -> CommandResult:
    """Parse the words of gold trees, or read other trees, and score them."""
    from dstransformer.extras.parsing.brackets import score_files
    from dstransformer.extras.parsing.trees import read_trees

    if options.bundle:
        return _parse_and_score(options)
    scores = score_files(read_trees(options.gold), read_trees(options.trees), options.tags or "parsed")
    return CommandResult(json.dumps(scores.to_json(), indent=2) if options.json else str(scores))


def _parse_and_score(options: Evaluate) -> CommandResult:
    """Parse the words of the gold trees, without empty elements. A parser that writes no tags is scored with theirs."""
    from dstransformer.cli.evaluate import writing_output
    from dstransformer.extras.parsing.brackets import score_trees
    from dstransformer.extras.parsing.trees import find_tree_files, normalise, parse_tree, read_trees
    from dstransformer.io.progress import reporting
    from dstransformer.model import open_bundle

    gold = [located.tree for located in read_trees(options.gold)]
    sentences = [" ".join(tree.words()) if (tree := normalise(one)) is not None else "" for one in gold]
    with writing_output(options, map(str, find_tree_files(options.gold))) as write:
        bundle = open_bundle(options.bundle[0])
        if not bundle.form.model:
            raise DataError(f"{bundle.path} is a translation model: score it with --task translation")
        parser: Parser = load_translator(options, bundle, kind=partial(resolve_name, f"{_PARSER}:Parser"))
        has_tags = parser.trees.tags == "keep"
        if not has_tags and options.tags not in (None, "gold"):
            raise UserError(f"--tags {options.tags}: {bundle.path} writes no tags; leave it out, or give --tags gold")
        with reporting("sentences", len(gold)) as progress:
            began = time.perf_counter()
            parsed = parser.translate(sentences, progress)
            seconds = time.perf_counter() - began
        if write is not None:
            for text in parsed:
                write(text)
        tags: Tags = (options.tags or "punctuation") if has_tags else "gold"
        scores = score_trees(gold, list(map(parse_tree, parsed)), tags)
    search = parser.describe()
    if options.json:
        record = {**scores.to_json(), "seconds": seconds, "bundle": str(bundle.path), **search}
        return CommandResult(json.dumps(record, indent=2))
    return CommandResult(
        f"{scores}\n{counted(len(gold), 'sentence')} in {seconds:.1f} s, beam {search['beam_size']}, "
        f"length penalty {search['length_penalty']}, {search['precision']} on {search['device']}"
    )
