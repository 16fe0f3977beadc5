"""``dst rerank``: choose among n-best hypotheses, by a reverse model, references or minimum Bayes risk."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Literal

from dstransformer.cli.options import Command, CommandResult, File, Folder, Tokenizer
from dstransformer.cli.score import ScoringTo, load_scorer
from dstransformer.errors import UserError
from dstransformer.io.command import exit_on_sigterm
from dstransformer.io.flags import argument, option

if TYPE_CHECKING:
    from dstransformer.decoding.scoring import Scorer
    from dstransformer.extras.rerank.reranking import Criterion, Group


def _weight(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return value


class Rerank(
    ScoringTo,
    Command,
    examples=(
        "dst rerank test.nbest.jsonl --reverse runs/de-en --weights 1 0.5 0.3 --output test.de",
        "dst rerank samples.jsonl --mbr chrf --output test.de",
    ),
):
    """Choose among n-best translations, by a reverse model, references or minimum Bayes risk."""

    file: File = argument("NBEST", "n-best lists that dst translate --n-best N --format jsonl wrote")
    reverse: Folder | None = option(
        "model from the target language to the source language (not needed if NBEST has its scores)", "BUNDLE"
    )
    weights: Sequence[Annotated[float, _weight]] = option(
        "weights of log p(translation|source), of log p(source|translation) and of the number of tokens",
        ("FORWARD", "REVERSE", "LENGTH"),
        nargs=3,
        one_of="criterion",
        required=True,
    )
    tune: File | None = option(
        "find the weights with the highest BLEU against these references", "REF", one_of="criterion"
    )
    mbr: Literal["chrf", "bleu"] | None = option(
        "take the translation that has the highest expected chrF or sentence BLEU against its list", one_of="criterion"
    )
    oracle: File | None = option(
        "choose the translations with the highest chrF against these references, to train a student on",
        "REF",
        one_of="criterion",
    )
    tokenize: Tokenizer | None = option(
        "with --tune and --mbr bleu: sacrebleu's tokenizer (auto: by the language that --reverse reads)", "NAME"
    )
    mbr_weights: Literal["uniform", "model"] | None = option(
        "with --mbr: weights of a list's translations: equal, or by log_probability (uniform)"
    )
    output: File | None = option(
        "file for the result, gzipped if it ends in .gz; - is stdout (stdout; with --tune none)", "FILE"
    )
    format: Literal["text", "jsonl"] = option(
        "the best translation of each line, or the reranked lists with all scores (text)", default="text"
    )
    overwrite: bool = option("replace an existing --output")
    json: bool = option("print what --tune finds as JSON")


@Rerank.handler
def run(options: Rerank) -> CommandResult:
    """Rerank n-best lists, or find weights for that.

    Raises:
        UserError: An option has no effect in this combination.
    """
    model = ("device", "precision", "batch_tokens", "max_tokens", "to")
    if options.reverse is None and (unused := [name for name in model if getattr(options, name) is not None]):
        raise UserError(f"--{unused[0].replace('_', '-')} is for the model of --reverse: name it, or leave that out")
    if options.tune is not None and options.output is None and options.format != "text":
        raise UserError("--format is for --output, which --tune does not need: name a file, or leave that out")
    if options.mbr is None and options.mbr_weights is not None:
        raise UserError("--mbr-weights is for --mbr: add it, or leave that out")
    if options.mbr is not None and options.reverse is not None:
        raise UserError("--reverse is for --weights and --tune: --mbr uses no other model; leave one out")
    if options.tokenize is not None and options.tune is None and options.mbr != "bleu":
        raise UserError("--tokenize is for --tune and --mbr bleu: leave it out")
    exit_on_sigterm()
    if options.oracle is not None:
        return _choose_by_references(options, options.oracle)
    return _rerank(options) if options.tune is None else _tune(options, options.tune)


def _rerank(options: Rerank) -> CommandResult:
    from dstransformer.extras.rerank.reranking import ExpectedUtility, Weights, with_reverse_scores
    from dstransformer.io.progress import reporting
    from dstransformer.io.text import is_stdout, writing_lines

    if options.json:
        raise UserError("--json is for --tune; --format jsonl writes the lists")
    groups = _read(options.file)
    with (
        writing_lines(options.output, overwrite=options.overwrite, inputs=[options.file]) as write,
        reporting("hypotheses", bar=not is_stdout(options.output)) as progress,
    ):
        if options.mbr is not None:
            groups, tokenize = _with_tokenizer(options, groups)
            utility = ExpectedUtility(options.mbr, options.mbr_weights or "uniform", tokenize)
            lines = _lines(options, groups, utility)
        else:
            scored = with_reverse_scores(groups, _load(options), options.file, progress)
            lines = _lines(options, scored, Weights(*options.weights))
        for line in lines:
            write(line)
    return CommandResult()


def _choose_by_references(options: Rerank, oracle: str) -> CommandResult:
    from dstransformer.extras.rerank.reranking import oracle_lines
    from dstransformer.io.progress import reporting
    from dstransformer.io.text import is_stdout, iter_lines, writing_lines

    given = {"--reverse": options.reverse, "--json": options.json, "--format jsonl": options.format != "text"}
    if unused := [option for option, value in given.items() if value]:
        raise UserError(f"{unused[0]} does not go with --oracle, which writes one text for each line: leave it out")
    groups, inputs = _read(options.file), [options.file, oracle]
    with (
        writing_lines(options.output, overwrite=options.overwrite, inputs=inputs) as write,
        reporting("lines", bar=not is_stdout(options.output)) as progress,
    ):
        for line in oracle_lines(groups, iter_lines(oracle), oracle):
            write(line)
            progress(1)
    return CommandResult()


def _tune(options: Rerank, path: str) -> CommandResult:
    from dstransformer.extras.rerank.reranking import tune, with_reverse_scores
    from dstransformer.io.progress import reporting
    from dstransformer.io.text import is_stdout, iter_lines, writing_lines

    if options.output is not None and is_stdout(options.output):
        raise UserError("--output - would mix the translations with what --tune prints: name a file")
    groups, references = _read(options.file), list(iter_lines(path))
    groups, tokenize = _with_tokenizer(options, groups)
    inputs = [options.file, path]
    with ExitStack() as stack:
        write = None
        if options.output is not None:
            write = stack.enter_context(writing_lines(options.output, overwrite=options.overwrite, inputs=inputs))
        with reporting("hypotheses") as progress:
            scored = list(with_reverse_scores(groups, _load(options), options.file, progress))
        found = tune(scored, references, path, tokenize)
        if write is not None:
            for line in _lines(options, scored, found.weights):
                write(line)
    if options.json:
        return CommandResult(json.dumps({
            "weights": found.weights._asdict(),
            "bleu": found.bleu.value,
            "signature": found.bleu.signature,
            "first_bleu": found.first_bleu,
            "best_bleu": found.best_bleu,
        }, indent=2))  # fmt: skip
    return CommandResult(
        f"--weights {found.weights}: {found.bleu}; the first of each list {found.first_bleu:.2f}, "
        f"the best of each list {found.best_bleu:.2f}"
    )


def _read(path: str) -> Iterator[Group]:
    """The lists of a file. A file that cannot be read is refused before a model is loaded."""
    from dstransformer.extras.rerank.reranking import iter_nbest

    groups = iter_nbest(path)
    return chain([next(groups)], groups)


def _with_tokenizer(options: Rerank, groups: Iterator[Group]) -> tuple[Iterator[Group], str]:
    """The lists again, and the tokenizer of BLEU: by the language that the reverse model reads, or by the text."""
    from dstransformer.evaluation.bleu import bleu_tokenizer, text_tokenizer
    from dstransformer.io.languages import language
    from dstransformer.model import open_bundle

    if options.mbr == "chrf":
        return groups, "13a"  # not used
    choice, option = options.tokenize or "auto", "--tokenize "
    code = None if options.reverse is None else open_bundle(options.reverse).src_lang
    if code is not None and language(code).tag is not None:
        return groups, bleu_tokenizer(code, choice, option)
    first = next(groups)
    return chain([first], groups), text_tokenizer([one.text for one in first], choice, option)


def _lines(options: Rerank, groups: Iterable[Group], criterion: Criterion) -> Iterator[str]:
    from dstransformer.extras.rerank.reranking import best_lines, json_lines

    return (best_lines if options.format == "text" else json_lines)(groups, criterion)


def _load(options: Rerank) -> Scorer | None:
    return None if options.reverse is None else load_scorer(options, options.reverse)
