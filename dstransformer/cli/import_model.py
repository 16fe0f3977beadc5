"""``dst import``: make a bundle of a model of another tool."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dstransformer.cli.options import CommandResult, folder
from dstransformer.errors import UserError, counted
from dstransformer.io.command import CommandParser, Commands, exit_on_sigterm

if TYPE_CHECKING:
    from pathlib import Path

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
    hf.set_defaults(handler=run_hf)
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
    marian.set_defaults(handler=run_marian)
    eole = formats.add_parser(
        "eole",
        help="a Transformer of eole, the successor of OpenNMT-py",
        examples=("dst import eole model-folder --src-lang en --tgt-lang de --out models/eole",),
    )
    eole.add_argument(
        "folder", metavar="FOLDER", type=folder, help="folder with config.json, model.00.safetensors and vocab.json"
    )
    eole.add_argument(
        "--sentencepiece",
        nargs="+",
        default=[],
        type=folder,
        metavar="SPM",
        help="SentencePiece model of both sides, or those of the source and of the target (those that it names)",
    )
    _add_bundle(eole, "")
    eole.set_defaults(handler=run_eole)


def _add_bundle(parser: CommandParser, default: str) -> None:
    parser.add_argument("--out", required=True, type=folder, metavar="BUNDLE", help="folder for the bundle")
    parser.add_argument("--src-lang", metavar="CODE", help=f"source language{default}")
    parser.add_argument("--tgt-lang", metavar="CODE", help=f"target language{default}")
    parser.add_argument("--any-language", action="store_true", help="take language codes that no table knows")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing bundle")


def run_hf(options: argparse.Namespace) -> CommandResult:
    """Make a bundle of a MarianMTModel.

    Raises:
        UserError: A code of no language.
    """
    languages = _languages(options)
    from dstransformer.exchange.hf_import import import_hf

    exit_on_sigterm()
    imported = import_hf(
        options.folder,
        options.out,
        **languages,
        overwrite=options.overwrite,
    )
    text = _describe(imported.bundle)
    return CommandResult(text + _describe_absent(imported.absent, "their text is divided into others"))


def run_marian(options: argparse.Namespace) -> CommandResult:
    """Make a bundle of a Transformer of Marian.

    Raises:
        UserError: More than two vocabularies, or a code of no language.
    """
    vocabularies, languages = _of_both_sides(options.vocabs, "--vocabs"), _languages(options)
    from dstransformer.exchange.marian_import import import_marian

    exit_on_sigterm()
    bundle = import_marian(
        options.model,
        vocabularies,
        options.out,
        **languages,
        overwrite=options.overwrite,
    )
    return CommandResult(_describe(bundle))


def run_eole(options: argparse.Namespace) -> CommandResult:
    """Make a bundle of a Transformer of eole.

    Raises:
        UserError: More than two SentencePiece models, or a code of no language.
    """
    models, languages = _of_both_sides(options.sentencepiece, "--sentencepiece"), _languages(options)
    from dstransformer.exchange.eole import import_eole

    exit_on_sigterm()
    imported = import_eole(
        options.folder,
        options.out,
        sentencepiece=models,
        **languages,
        overwrite=options.overwrite,
    )
    return CommandResult(_describe(imported.bundle) + _describe_absent(imported.absent, "they are unknown, as in eole"))


def _languages(options: argparse.Namespace) -> dict[str, str | None]:
    """The codes of both languages as arguments of an import, None where the user gives none."""
    from dstransformer.io.languages import code_problem

    codes = {"src_lang": options.src_lang, "tgt_lang": options.tgt_lang}
    for name, code in codes.items() if not options.any_language else ():
        if code is not None and (problem := code_problem(code, "--any-language")):
            raise UserError(f"--{name.replace('_', '-')}: {problem}")
    return codes


def _of_both_sides(files: list[Path], option: str) -> list[Path]:
    """A file for each side, from one for both, one for each, or none."""
    if len(files) > 2:
        raise UserError(f"{option} names {len(files)} files: name one for both sides, or one for each")
    return files * 2 if len(files) == 1 else files


def _describe_absent(absent: list[str], what: str) -> str:
    if not absent:
        return ""
    return (
        f"\n{counted(len(absent), 'piece')} of its SentencePiece models are not in its vocabulary "
        f"({', '.join(map(repr, absent[:3]))}): {what}"
    )


def _describe(bundle: Bundle) -> str:
    languages = f"{bundle.src_lang or 'unknown'} to {bundle.tgt_lang or 'unknown'}"
    return f"{bundle.path}: {languages}, {bundle.tokenizer.vocab_size:,} pieces"
