"""``dst import``: make a bundle of a model of another tool."""

from __future__ import annotations

from collections.abc import Sequence

from dstransformer.cli.options import Command, CommandResult, Folder
from dstransformer.errors import UserError, counted
from dstransformer.io.command import exit_on_sigterm
from dstransformer.io.flags import argument, option


class _Import(Command):
    """What every format has."""

    out: Folder = option("folder for the bundle", "BUNDLE", required=True)
    src_lang: str | None = option("source language", "CODE")
    tgt_lang: str | None = option("target language", "CODE")
    any_language: bool = option("take language codes that no table knows")
    overwrite: bool = option("replace an existing bundle")


class Hf(_Import, examples=("dst import hf opus-mt-en-de --src-lang en --tgt-lang de --out models/opus",)):
    """A MarianMTModel of transformers, such as an OPUS-MT model."""

    folder: Folder = argument(
        "FOLDER", "folder with config.json, model.safetensors, source.spm, target.spm and vocab.json"
    )
    src_lang: str | None = option("source language (that of the folder's tokenizer)", "CODE")
    tgt_lang: str | None = option("target language (that of the folder's tokenizer)", "CODE")


class Marian(
    _Import,
    examples=("dst import marian model.npz --vocabs vocab.spm --src-lang en --tgt-lang de --out models/marian",),
):
    """A Transformer of Marian."""

    model: Folder = argument("MODEL", "its weights, model.npz")
    vocabs: Sequence[Folder] = option(
        "SentencePiece model of both sides, or those of the source and of the target", "SPM", required=True
    )


class Import(Command):
    """Make a bundle of a model of another tool."""

    metavar = "FORMAT"
    commands = (Hf, Marian)


@_Import.handler
def run(options: _Import) -> CommandResult:
    """Make a bundle of a model in one of the formats.

    Raises:
        UserError: A language code that no table knows, or more files than sides.
    """
    from dstransformer.io.languages import code_problem

    for name in () if options.any_language else ("src_lang", "tgt_lang"):
        if (code := getattr(options, name)) is not None and (problem := code_problem(code, "--any-language")):
            raise UserError(f"--{name.replace('_', '-')}: {problem}")
    exit_on_sigterm()
    details = {name: getattr(options, name) for name in ("src_lang", "tgt_lang", "overwrite")}
    if isinstance(options, Hf):
        from dstransformer.exchange.hf_import import import_hf

        bundle, absent = import_hf(options.folder, options.out, **details)
    else:
        assert isinstance(options, Marian)
        if len(options.vocabs) > 2:
            raise UserError(f"--vocabs names {len(options.vocabs)} files: name one for both sides, or one for each")
        from dstransformer.exchange.marian_import import import_marian

        vocabularies = [*options.vocabs] * (3 - len(options.vocabs))
        bundle, absent = import_marian(options.model, vocabularies, options.out, **details), []
    languages = f"{bundle.src_lang or 'unknown'} to {bundle.tgt_lang or 'unknown'}"
    text = f"{bundle.path}: {languages}, {bundle.tokenizer.vocab_size:,} pieces"
    if absent:
        text += (
            f"\n{counted(len(absent), 'piece')} of its SentencePiece models are not in its vocabulary "
            f"({', '.join(map(repr, absent[:3]))}): their text is divided into others"
        )
    return CommandResult(text)
