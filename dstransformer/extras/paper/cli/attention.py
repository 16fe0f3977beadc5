"""``dst attention``: draw the attention of a model for a sentence."""

from __future__ import annotations

import argparse

from dstransformer.cli.options import CommandResult, add_decoding, folder, load_translator
from dstransformer.io.command import Commands, exit_on_sigterm


def add_parser(commands: Commands) -> None:
    """Add the parser of ``dst attention``."""
    parser = commands.add_parser(
        "attention",
        help="draw the attention of a model for a sentence",
        description="Draws encoder self-attention, decoder self-attention and encoder-decoder attention as in Figures "
        "3 to 5 of the paper. Layers and heads count from 1, as in its captions: layer 5 of 6 is the last but one.",
        examples=("dst attention runs/en-de 'the cat sleeps' --out attention.html",),
    )
    add_decoding(parser, output="--out")
    parser.add_argument("sentence", metavar="SENTENCE", help="source sentence, in quotes")
    parser.add_argument("--out", required=True, type=folder, metavar="FOLDER", help="folder for pictures and page")
    parser.add_argument("--target", metavar="SENTENCE", help="translation to draw the attention of (the model's own)")
    parser.add_argument("--layer", type=int, metavar="N", help="layer of the pictures, from 1 (the last)")
    parser.add_argument("--heads", type=_numbers, default=(), metavar="N,N", help="heads of the pictures, from 1 (all)")
    parser.add_argument("--words", type=_names, default=(), metavar="W,W", help="draw only the lines of these words")
    parser.add_argument("--whole-words", action="store_true", help="merge the pieces of each word")
    parser.add_argument("--kind", choices=("encoder", "decoder", "cross"), help="draw one kind of attention only")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> CommandResult:
    """Draw the attention."""
    from dstransformer.extras.paper.attention import KINDS, PAGE, WEIGHTS, Selection, draw_attention
    from dstransformer.model import open_bundle

    exit_on_sigterm()
    bundle = open_bundle(options.bundle)
    kinds = KINDS if options.kind is None else (options.kind,)
    drawn = draw_attention(
        bundle,
        lambda: load_translator(options, bundle),
        options.sentence,
        options.out,
        Selection(options.layer, options.heads, options.words, kinds, options.whole_words),
        target=options.target,
        overwrite=options.overwrite,
    )
    heads = ("head " if len(drawn.heads) == 1 else "heads ") + ", ".join(map(str, drawn.heads))
    what = f"{drawn.pictures} pictures of {drawn.layer}, {heads}"
    lines = [f"{drawn.source} → {drawn.target}", f"{options.out}: {PAGE}, {WEIGHTS} and {what}"]
    if drawn.without_lines:
        lines.append(f"no lines for {' and '.join(drawn.without_lines)}: none of the words of --words is on that side")
    return CommandResult("\n".join(lines))


def _numbers(text: str) -> tuple[int, ...]:
    """The type of ``--heads``."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not numbers with commas, as in 5,6") from None


def _names(text: str) -> tuple[str, ...]:
    """The type of ``--words``."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not words with commas, as in its,law")
    return names
