"""``dst score`` and ``dst align``: how probable a model finds given translations, and how their words align."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dstransformer.cli.options import Command, CommandResult, Device, File, Folder, Target
from dstransformer.errors import UserError, counted
from dstransformer.io.command import exit_on_sigterm
from dstransformer.io.flags import argument, option

if TYPE_CHECKING:
    from dstransformer.decoding.scoring import Scorer
    from dstransformer.model import Bundle


class Scoring(Device):
    """How given translations are decoded."""

    max_tokens: int | None = option("pairs with a longer side get no result; 0: all do (the bundle's)", "N")
    batch_tokens: int | None = option("tokens per batch on the longer side (the bundle's)", "N")

    def load_settings(self) -> dict[str, Any]:
        """With what a scorer, or an aligner, is loaded."""
        return {name: getattr(self, name) for name in ("device", "precision", "batch_tokens", "max_tokens")}


class Pairs(Scoring):
    """The pairs of two files."""

    bundle: Folder = argument("BUNDLE", "folder of a bundle, a checkpoint or a run")
    src: File = option("source text, one sentence per line", "FILE", required=True)
    tgt: File = option("its translation, line by line", "FILE", required=True)
    overwrite: bool = option("replace an existing --output")


class ScoringTo(Scoring, Target):
    """What a scorer is loaded with."""


class Score(
    ScoringTo, Pairs, Command, examples=("dst score runs/en-de --src test.en --tgt test.de --output scores.tsv",)
):
    """Log-probability and perplexity of given translations, pair by pair."""

    output: File | None = option("file for the scores, gzipped if it ends in .gz; - is stdout (stdout)", "FILE")
    format: Literal["text", "jsonl"] = option(
        "log-probability in nats, tokens and perplexity, separated by tabs; or a JSON object per line (text)",
        default="text",
    )


@Score.handler
def score(options: Score) -> CommandResult:
    """Score the pairs of two files."""
    from dstransformer.io.progress import reporting
    from dstransformer.io.text import is_stdout
    from dstransformer.model import open_bundle

    exit_on_sigterm()
    bundle = open_bundle(options.bundle)
    from dstransformer.decoding.scoring import score_files

    printed = is_stdout(options.output)
    with reporting("pairs", bar=not printed) as progress:
        totals = score_files(
            options.src,
            options.tgt,
            options.output,
            partial(load_scorer, options, bundle),
            output_format=options.format,
            overwrite=options.overwrite,
            progress=progress,
        )
    return CommandResult("" if printed else f"{options.output}: {totals}")


def load_scorer(options: ScoringTo, bundle: Path | Bundle) -> Scorer:
    """Load a scorer with the options of :class:`ScoringTo`."""
    from dstransformer.decoding.scoring import Scorer

    return Scorer.load(bundle, to=options.to, **options.load_settings())


class Align(Pairs, Command, examples=("dst align runs/en-de --src test.en --tgt test.de --output links.txt",)):
    """Word alignments of given translations, pair by pair."""

    output: File | None = option(
        "file for the links, such as 0-0 1-2, gzipped if it ends in .gz; - is stdout (stdout)", "FILE"
    )
    reference: File | None = option(
        "right links, line by line, such as 0-0 1p2 with p for possible ones: print the alignment error rate, "
        "precision and recall as JSON, and write links only to an --output",
        "FILE",
    )


@Align.handler
def align(options: Align) -> CommandResult:
    """Align the pairs of two files."""
    from dstransformer.data.alignment import read_references, score_alignments
    from dstransformer.io.progress import reporting
    from dstransformer.io.text import is_stdout
    from dstransformer.model import open_bundle

    exit_on_sigterm()
    files = options.src, options.tgt
    if options.reference is not None and options.output is not None and is_stdout(options.output):
        raise UserError("--reference prints figures, so links cannot go to standard output: name a file as --output")
    references = None if options.reference is None else read_references(options.reference, *files)
    bundle = open_bundle(options.bundle)
    from dstransformer.decoding.aligner import Aligner, align_files

    load = partial(Aligner.load, bundle, **options.load_settings())
    printed = references is None and is_stdout(options.output)
    with reporting("pairs", bar=not printed) as progress:
        output = "-" if references is None and options.output is None else options.output
        alignments = align_files(*files, output, load, overwrite=options.overwrite, progress=progress)
        if references is not None:
            return CommandResult(json.dumps(score_alignments(alignments, references).record()))
        pairs = sum(1 for _ in alignments)
    return CommandResult("" if printed else f"{options.output}: {counted(pairs, 'pair')}")
