"""``dst import``: make a bundle of a model of another tool."""

from __future__ import annotations

import argparse

from dstransformer.cli.options import CommandResult, Commands, folder
from dstransformer.errors import counted
from dstransformer.terminal.command import CommandParser, exit_on_sigterm


def add_parser(commands: Commands[CommandParser]) -> None:
    """Add the parser of ``dst import``."""
    parser = commands.add_parser("import", help="make a bundle of a model of another tool")
    formats = parser.add_subparsers(metavar="FORMAT", required=True, parser_class=CommandParser)
    hf = formats.add_parser("hf", help="a MarianMTModel of transformers, such as an OPUS-MT model")
    hf.add_argument(
        "folder",
        metavar="FOLDER",
        type=folder,
        help="folder with config.json, model.safetensors, source.spm, target.spm and vocab.json",
    )
    hf.add_argument("--out", required=True, type=folder, metavar="BUNDLE", help="folder for the bundle")
    hf.add_argument("--src-lang", metavar="CODE", help="source language (that of the folder's tokenizer)")
    hf.add_argument("--tgt-lang", metavar="CODE", help="target language (that of the folder's tokenizer)")
    hf.add_argument("--overwrite", action="store_true", help="replace an existing bundle")
    hf.set_defaults(handler=run_hf)


def run_hf(options: argparse.Namespace) -> CommandResult:
    """Make a bundle of a MarianMTModel."""
    from dstransformer.importing.hf import import_hf

    exit_on_sigterm()
    imported = import_hf(
        options.folder,
        options.out,
        src_lang=options.src_lang,
        tgt_lang=options.tgt_lang,
        overwrite=options.overwrite,
    )
    bundle = imported.bundle
    languages = f"{bundle.src_lang or 'unknown'} to {bundle.tgt_lang or 'unknown'}"
    text = f"{options.out}: {languages}, {bundle.tokenizer.vocab_size:,} pieces"
    if imported.absent:
        text += (
            f"\n{counted(len(imported.absent), 'piece')} of its SentencePiece models are not in its vocabulary "
            f"({', '.join(map(repr, imported.absent[:3]))}): their text is divided into others"
        )
    return CommandResult(text)
