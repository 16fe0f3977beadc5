"""``dst score``: how probable a model finds given translations."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dstransformer.cli.options import CommandResult, add_device, add_target, file, folder
from dstransformer.io.command import CommandParser, Commands, exit_on_sigterm

if TYPE_CHECKING:
    from dstransformer.decoding.scoring import Scorer
    from dstransformer.model import Bundle


def add_parser(commands: Commands) -> None:
    """Add the parser of ``dst score``."""
    parser = commands.add_parser(
        "score",
        help="log-probability and perplexity of given translations, pair by pair",
        examples=("dst score runs/en-de --src test.en --tgt test.de --output scores.tsv",),
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=folder, help="folder of a bundle, a checkpoint or a run")
    parser.add_argument("--src", required=True, type=file, metavar="FILE", help="source text, one sentence per line")
    parser.add_argument("--tgt", required=True, type=file, metavar="FILE", help="its translation, line by line")
    parser.add_argument(
        "--output",
        type=file,
        metavar="FILE",
        help="file for the scores, gzipped if it ends in .gz; - is stdout (stdout)",
    )
    parser.add_argument(
        "--format",
        choices=("text", "jsonl"),
        default="text",
        help="log-probability in nats, tokens and perplexity, separated by tabs; or a JSON object per line (text)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --output")
    add_scoring(parser)
    add_target(parser)
    parser.set_defaults(handler=run)


def add_scoring(parser: CommandParser, what: str = "score") -> None:
    """Add the options of commands that decode given translations."""
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help=f"pairs with a longer side get no {what}; 0: all do (the bundle's)"
    )
    parser.add_argument(
        "--batch-tokens", type=int, metavar="N", help="tokens per batch on the longer side (the bundle's)"
    )
    add_device(parser)


def run(options: argparse.Namespace) -> CommandResult:
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


def load_scorer(options: argparse.Namespace, bundle: Path | Bundle) -> Scorer:
    """Load a scorer with the options of :func:`add_scoring`."""
    from dstransformer.decoding.scoring import Scorer

    return Scorer.load(
        bundle,
        device=options.device,
        precision=options.precision,
        batch_tokens=options.batch_tokens,
        max_tokens=options.max_tokens,
        to=options.to,
    )
