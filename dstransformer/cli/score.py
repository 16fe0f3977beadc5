"""``dst score``: how probable a model finds given translations."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dstransformer.cli.options import Command, CommandResult, Device, File, Folder, Target
from dstransformer.io.command import exit_on_sigterm
from dstransformer.io.flags import argument, option

if TYPE_CHECKING:
    from dstransformer.decoding.scoring import Scorer
    from dstransformer.model import Bundle


class Scoring(Device):
    """How given translations are decoded."""

    max_tokens: int | None = option("pairs with a longer side get no result; 0: all do (the bundle's)", "N")
    batch_tokens: int | None = option("tokens per batch on the longer side (the bundle's)", "N")


class Pairs(Scoring):
    """The pairs of two files."""

    bundle: Folder = argument("BUNDLE", "folder of a bundle, a checkpoint or a run")
    src: File = option("source text, one sentence per line", "FILE", required=True)
    tgt: File = option("its translation, line by line", "FILE", required=True)
    overwrite: bool = option("replace an existing --output")


class ScoringTo(Scoring, Target):
    """What a scorer is loaded with."""


class Score(
    ScoringTo,
    Pairs,
    Command,
    examples=("dst score runs/en-de --src test.en --tgt test.de --output scores.tsv",),
):
    """Log-probability and perplexity of given translations, pair by pair."""

    output: File | None = option("file for the scores, gzipped if it ends in .gz; - is stdout (stdout)", "FILE")
    format: Literal["text", "jsonl"] = option(
        "log-probability in nats, tokens and perplexity, separated by tabs; or a JSON object per line (text)",
        default="text",
    )


@Score.handler
def run(options: Score) -> CommandResult:
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

    return Scorer.load(
        bundle,
        device=options.device,
        precision=options.precision,
        batch_tokens=options.batch_tokens,
        max_tokens=options.max_tokens,
        to=options.to,
    )
