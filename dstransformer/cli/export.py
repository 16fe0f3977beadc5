"""``dst export``: write a bundle in the format of another tool."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dstransformer.cli.options import CommandResult, folder
from dstransformer.errors import UserError, shell_word
from dstransformer.io.command import CommandParser, Commands, exit_on_sigterm

if TYPE_CHECKING:
    from dstransformer.exchange.shortlist import ShortlistOptions
    from dstransformer.model import Bundle

#: What ``--quantization`` takes: CTranslate2's names.
QUANTIZATIONS = (
    "float32",
    "float16",
    "bfloat16",
    "int16",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
)


def add_parser(commands: Commands) -> None:
    """Add the parser of ``dst export``."""
    parser = commands.add_parser(
        "export", help="write a bundle for Hugging Face, CTranslate2, Marian or Argos Translate"
    )
    formats = parser.add_commands("FORMAT")
    hf = formats.add_parser(
        "hf",
        help="a folder for transformers: MarianMTModel and a fast tokenizer",
        examples=("dst export hf runs/en-de exports/hf",),
    )
    _add_places(hf)
    hf.set_defaults(handler=run_hf)
    ct2 = formats.add_parser(
        "ct2",
        help="a folder for CTranslate2 (needs dstransformer[ct2])",
        examples=("dst export ct2 runs/en-de exports/ct2 --quantization int8",),
    )
    _add_places(ct2)
    _add_quantization(ct2, "float32")
    ct2.add_argument(
        "--reduce-range",
        action="store_true",
        help="weights of 7 bits in an int8 type: exact on processors without instructions for 8 (VNNI)",
    )
    ct2.add_argument(
        "--positions",
        type=int,
        metavar="N",
        help="tokens of the longest sentence, on either side, with its end (2048, or the bundle's limits if they are "
        "higher); fewer take less space",
    )
    _add_shortlist(ct2)
    ct2.set_defaults(handler=run_ct2)
    marian = formats.add_parser(
        "marian",
        help="a folder for Marian: model.npz and its vocabulary",
        examples=("dst export marian runs/en-de exports/marian",),
    )
    _add_places(marian)
    _add_shortlist(marian)
    marian.set_defaults(handler=run_marian)
    argos = formats.add_parser(
        "argos",
        help="a package for Argos Translate and LibreTranslate (needs dstransformer[argos])",
        examples=("dst export argos runs/en-de exports/en-de.argosmodel",),
    )
    argos.add_argument("bundle", metavar="BUNDLE", type=folder, help="folder of a bundle, a checkpoint or a run")
    argos.add_argument("out", metavar="OUT", type=folder, help="file to write, NAME.argosmodel")
    argos.add_argument("--overwrite", action="store_true", help="replace an earlier package")
    _add_quantization(argos, "int8")
    argos.add_argument(
        "--sentences",
        type=folder,
        metavar="FILE",
        help="MiniSBD's model of the source language (.onnx), to go into the package; without it Argos Translate "
        "downloads one",
    )
    argos.set_defaults(handler=run_argos)


def _add_places(parser: CommandParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE", type=folder, help="folder of a bundle, a checkpoint or a run")
    parser.add_argument("out", metavar="OUT", type=folder, help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    parser.add_argument(
        "--sign", type=folder, metavar="KEY", help="sign the export with a private key (needs dstransformer[sign])"
    )


def _add_quantization(parser: CommandParser, default: str) -> None:
    parser.add_argument(
        "--quantization", choices=QUANTIZATIONS, default=default, help=f"type of the stored weights ({default})"
    )


def _add_shortlist(parser: CommandParser) -> None:
    parser.add_argument(
        "--shortlist",
        type=folder,
        metavar="CORPUS",
        help="limit translations to pieces that a corpus of dst-prep has for those of the source",
    )
    parser.add_argument(
        "--shortlist-best", type=int, metavar="K", help="with --shortlist: likely target pieces of a source piece (100)"
    )
    parser.add_argument(
        "--shortlist-frequent", type=int, metavar="N", help="with --shortlist: frequent pieces for any source (100)"
    )


def _shortlist(options: argparse.Namespace) -> ShortlistOptions | None:
    """The shortlist, if one is wanted.

    Raises:
        UserError: An option of the shortlist without one, or out of bounds.
    """
    sizes = {"best": options.shortlist_best, "frequent": options.shortlist_frequent}
    for name, value in sizes.items():
        if value is not None and options.shortlist is None:
            raise UserError(f"--shortlist-{name} is for --shortlist: add it, or leave that out")
        if value is not None and value < 1:
            raise UserError(f"--shortlist-{name} {value}: give 1 or more")
    if options.shortlist is None:
        return None
    from dstransformer.exchange.shortlist import DEFAULT_SIZE, ShortlistOptions

    return ShortlistOptions(options.shortlist, **{name: value or DEFAULT_SIZE for name, value in sizes.items()})


def _open(options: argparse.Namespace) -> Bundle:
    """The bundle, refused if it is none before what exports it is imported, which takes seconds."""
    from dstransformer.model import open_bundle

    exit_on_sigterm()
    return open_bundle(options.bundle)


def _finish(options: argparse.Namespace) -> Callable[[Path], None] | None:
    """What signs the export, if that is wanted."""
    if options.sign is None:
        return None
    from dstransformer.io.signatures import Signer

    return Signer(options.sign).sign


def run_hf(options: argparse.Namespace) -> CommandResult:
    """Write a folder for Hugging Face transformers."""
    opened = _open(options)
    from dstransformer.exchange.hf_export import export_hf
    from dstransformer.exchange.hf_tokenizer import is_marian

    bundle = export_hf(opened, options.out, overwrite=options.overwrite, finish=_finish(options))
    whole = bundle.tokenizer.is_single or is_marian(bundle)
    with_it = "its tokenizer" if whole else "the source's tokenizer, and the target's in target/"
    return CommandResult(f"{options.out}: a MarianMTModel with {with_it}; README.md is its model card")


def run_marian(options: argparse.Namespace) -> CommandResult:
    """Write a folder for Marian.

    Raises:
        UserError: An option of the shortlist without one, or out of bounds.
    """
    shortlist, opened = _shortlist(options), _open(options)
    from dstransformer.exchange.marian_npz import DECODER, export_marian

    export_marian(opened, options.out, shortlist=shortlist, overwrite=options.overwrite, finish=_finish(options))
    return CommandResult(f"{options.out}: a model of Marian; decode with --config {shell_word(options.out / DECODER)}")


def run_ct2(options: argparse.Namespace) -> CommandResult:
    """Write a folder for CTranslate2.

    Raises:
        UserError: An option of the shortlist without one, or out of bounds; a reduced range without an int8 type; or
            too few positions.
    """
    if options.positions is not None and options.positions < 2:
        raise UserError(f"--positions {options.positions}: a sentence has at least 2 tokens with its end")
    if options.reduce_range and not options.quantization.startswith("int8"):
        raise UserError(
            f"--reduce-range is for int8, not {options.quantization}: add --quantization int8, or leave it out"
        )
    shortlist, opened = _shortlist(options), _open(options)
    from dstransformer.exchange.ct2 import export_ct2

    export_ct2(
        opened,
        options.out,
        quantization=options.quantization,
        reduce_range=options.reduce_range,
        positions=options.positions,
        shortlist=shortlist,
        overwrite=options.overwrite,
        finish=_finish(options),
    )
    return CommandResult(f"{options.out}: a CTranslate2 model ({options.quantization}); translate with --engine ct2")


def run_argos(options: argparse.Namespace) -> CommandResult:
    """Write a package for Argos Translate."""
    opened = _open(options)
    from dstransformer.exchange.argos import export_argos

    export_argos(
        opened,
        options.out,
        quantization=options.quantization,
        sentences=options.sentences,
        overwrite=options.overwrite,
    )
    return CommandResult(f"{options.out}: a package for Argos Translate and LibreTranslate ({options.quantization})")
