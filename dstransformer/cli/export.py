"""``dst export``: write a bundle in the format of another tool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dstransformer.cli.options import Command, CommandResult, Folder
from dstransformer.errors import UserError, shell_word
from dstransformer.io.command import exit_on_sigterm
from dstransformer.io.flags import Options, argument, option

if TYPE_CHECKING:
    from dstransformer.exchange.shortlist import ShortlistOptions
    from dstransformer.model import Bundle

#: CTranslate2's names of types.
Quantization = Literal[
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"
]  # fmt: skip


class _Export(Command):
    """What every format has."""

    bundle: Folder = argument("BUNDLE", "folder of a bundle, a checkpoint or a run")


class _FolderExport(_Export):
    """What formats of several files have."""

    out: Folder = argument("OUT", "folder to write")
    overwrite: bool = option("replace an earlier export")
    sign: Folder | None = option("sign the export with a private key (needs dstransformer[sign])", "KEY")


class _Shortlist(Options):
    """The pieces to which translations are limited."""

    shortlist: Folder | None = option(
        "limit translations to pieces that a corpus of dst-prep has for those of the source", "CORPUS"
    )
    shortlist_best: int | None = option("with --shortlist: likely target pieces of a source piece (100)", "K")
    shortlist_frequent: int | None = option("with --shortlist: frequent pieces for any source (100)", "N")


class Hf(_FolderExport, examples=("dst export hf runs/en-de exports/hf",)):
    """A folder for transformers: MarianMTModel and a fast tokenizer."""


class Ct2(_Shortlist, _FolderExport, examples=("dst export ct2 runs/en-de exports/ct2 --quantization int8",)):
    """A folder for CTranslate2 (needs dstransformer[ct2])."""

    quantization: Quantization = option("type of the stored weights (float32)", default="float32")
    reduce_range: bool = option(
        "weights of 7 bits in an int8 type: exact on processors without instructions for 8 (VNNI)"
    )
    positions: int | None = option(
        "tokens of the longest sentence, on either side, with its end (2048, or the bundle's limits if they are "
        "higher); fewer take less space",
        "N",
    )


class Marian(_Shortlist, _FolderExport, examples=("dst export marian runs/en-de exports/marian",)):
    """A folder for Marian: model.npz and its vocabulary."""


class Argos(_Export, examples=("dst export argos runs/en-de exports/en-de.argosmodel",)):
    """A package for Argos Translate and LibreTranslate (needs dstransformer[argos])."""

    out: Folder = argument("OUT", "file to write, NAME.argosmodel")
    overwrite: bool = option("replace an earlier package")
    quantization: Quantization = option("type of the stored weights (int8)", default="int8")
    sentences: Folder | None = option(
        "MiniSBD's model of the source language (.onnx), to go into the package; without it Argos Translate downloads "
        "one",
        "FILE",
    )


class Export(Command):
    """Write a bundle for Hugging Face, CTranslate2, Marian or Argos Translate."""

    metavar = "FORMAT"
    commands = (Hf, Ct2, Marian, Argos)


def _shortlist(options: _Shortlist) -> ShortlistOptions | None:
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


def _open(options: _Export) -> Bundle:
    """The bundle, refused if it is none before what exports it is imported, which takes seconds."""
    from dstransformer.model import open_bundle

    exit_on_sigterm()
    return open_bundle(options.bundle)


def _finish(options: _FolderExport) -> Callable[[Path], None] | None:
    """What signs the export, if that is wanted."""
    if options.sign is None:
        return None
    from dstransformer.io.signatures import Signer

    return Signer(options.sign).sign


@Hf.handler
def run_hf(options: Hf) -> CommandResult:
    """Write a folder for Hugging Face transformers."""
    opened = _open(options)
    from dstransformer.exchange.hf_export import export_hf
    from dstransformer.exchange.hf_tokenizer import is_marian

    export_hf(opened, options.out, overwrite=options.overwrite, finish=_finish(options))
    one_tokenizer = opened.tokenizer.is_single or is_marian(opened)
    with_it = "its tokenizer" if one_tokenizer else "the source's tokenizer, and the target's in target/"
    return CommandResult(f"{options.out}: a MarianMTModel with {with_it}; README.md is its model card")


@Marian.handler
def run_marian(options: Marian) -> CommandResult:
    """Write a folder for Marian."""
    shortlist, opened = _shortlist(options), _open(options)
    from dstransformer.exchange.marian_npz import DECODER, export_marian

    export_marian(opened, options.out, shortlist=shortlist, overwrite=options.overwrite, finish=_finish(options))
    return CommandResult(f"{options.out}: a model of Marian; decode with --config {shell_word(options.out / DECODER)}")


@Ct2.handler
def run_ct2(options: Ct2) -> CommandResult:
    """Write a folder for CTranslate2."""
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


@Argos.handler
def run_argos(options: Argos) -> CommandResult:
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
