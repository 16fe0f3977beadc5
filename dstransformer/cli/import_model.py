"""``dst import``: make a bundle of a model of another tool."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dstransformer.cli.options import CommandResult, folder
from dstransformer.errors import UserError, counted
from dstransformer.io.command import CommandParser, Commands, exit_on_sigterm

if TYPE_CHECKING:
    from dstransformer.model import Bundle


def add_parser(commands: Commands) -> None:
    """Add the parser of ``dst import``."""
    parser = commands.add_parser("import", help="make a bundle of a model of another tool")
    formats = parser.add_commands("FORMAT")
    hf = formats.add_parser(
        "hf",
        help="a MarianMTModel of transformers, such as an OPUS-MT model",
        examples=("dst import hf opus-mt-en-de --src-lang en --tgt-lang de --out models/opus",),
    )
    hf.add_argument(
        "folder",
        metavar="FOLDER",
        type=folder,
        help="folder with config.json, model.safetensors, source.spm, target.spm and vocab.json",
    )
    _add_bundle(hf, " (that of the folder's tokenizer)")
    hf.set_defaults(handler=run, load=_import_hf)
    marian = formats.add_parser(
        "marian",
        help="a Transformer of Marian",
        examples=("dst import marian model.npz --vocabs vocab.spm --src-lang en --tgt-lang de --out models/marian",),
    )
    marian.add_argument("model", metavar="MODEL", type=folder, help="its weights, model.npz")
    marian.add_argument(
        "--vocabs",
        nargs="+",
        required=True,
        type=folder,
        metavar="SPM",
        help="SentencePiece model of both sides, or those of the source and of the target",
    )
    _add_bundle(marian, "")
    marian.set_defaults(handler=run, load=_import_marian)


def _add_bundle(parser: CommandParser, default: str) -> None:
    parser.add_argument("--out", required=True, type=folder, metavar="BUNDLE", help="folder for the bundle")
    parser.add_argument("--src-lang", metavar="CODE", help=f"source language{default}")
    parser.add_argument("--tgt-lang", metavar="CODE", help=f"target language{default}")
    parser.add_argument("--any-language", action="store_true", help="take language codes that no table knows")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing bundle")


def run(options: argparse.Namespace) -> CommandResult:
    """Make a bundle of a model in one of the formats.

    Raises:
        UserError: A language code that no table knows, or more files than sides.
    """
    from dstransformer.io.languages import code_problem

    for name in () if options.any_language else ("src_lang", "tgt_lang"):
        if (code := getattr(options, name)) is not None and (problem := code_problem(code, "--any-language")):
            raise UserError(f"--{name.replace('_', '-')}: {problem}")
    exit_on_sigterm()
    text: str = options.load(options, src_lang=options.src_lang, tgt_lang=options.tgt_lang, overwrite=options.overwrite)
    return CommandResult(text)


def _import_hf(options: argparse.Namespace, **details: Any) -> str:
    from dstransformer.exchange.hf_import import import_hf

    imported = import_hf(options.folder, options.out, **details)
    text = _describe(imported.bundle)
    if imported.absent:
        text += (
            f"\n{counted(len(imported.absent), 'piece')} of its SentencePiece models are not in its vocabulary "
            f"({', '.join(map(repr, imported.absent[:3]))}): their text is divided into others"
        )
    return text


def _import_marian(options: argparse.Namespace, **details: Any) -> str:
    if len(options.vocabs) > 2:
        raise UserError(f"--vocabs names {len(options.vocabs)} files: name one for both sides, or one for each")
    from dstransformer.exchange.marian_import import import_marian

    vocabularies = options.vocabs * (3 - len(options.vocabs))
    return _describe(import_marian(options.model, vocabularies, options.out, **details))


def _describe(bundle: Bundle) -> str:
    languages = f"{bundle.src_lang or 'unknown'} to {bundle.tgt_lang or 'unknown'}"
    return f"{bundle.path}: {languages}, {bundle.tokenizer.vocab_size:,} pieces"
