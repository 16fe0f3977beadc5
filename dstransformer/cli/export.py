"""``dst export``: write a bundle in the format of another tool."""

from __future__ import annotations

import argparse

from dstransformer.cli.options import CommandResult, Commands, folder
from dstransformer.terminal.command import CommandParser, exit_on_sigterm

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


def add_parser(commands: Commands[CommandParser]) -> None:
    """Add the parser of ``dst export``."""
    parser = commands.add_parser("export", help="write a bundle for Hugging Face or CTranslate2")
    formats = parser.add_subparsers(metavar="FORMAT", required=True, parser_class=CommandParser)
    hf = formats.add_parser("hf", help="a folder for transformers: MarianMTModel and a fast tokenizer")
    _add_places(hf)
    hf.set_defaults(handler=run_hf)
    ct2 = formats.add_parser("ct2", help="a folder for CTranslate2 (needs dstransformer[ct2])")
    _add_places(ct2)
    ct2.add_argument(
        "--quantization", choices=QUANTIZATIONS, default="float32", help="type of the stored weights (float32)"
    )
    ct2.set_defaults(handler=run_ct2)


def _add_places(parser: CommandParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE", type=folder, help="folder of a bundle, a checkpoint or a run")
    parser.add_argument("out", metavar="OUT", type=folder, help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")


def run_hf(options: argparse.Namespace) -> CommandResult:
    """Write a folder for Hugging Face transformers."""
    from dstransformer.export.hf import export_hf

    exit_on_sigterm()
    bundle = export_hf(options.bundle, options.out, overwrite=options.overwrite)
    with_it = "its tokenizer" if bundle.tokenizer.is_joint else "the source's tokenizer, and the target's in target/"
    return CommandResult(f"{options.out}: a MarianMTModel with {with_it}; README.md is its model card")


def run_ct2(options: argparse.Namespace) -> CommandResult:
    """Write a folder for CTranslate2."""
    from dstransformer.export.ct2 import export_ct2

    exit_on_sigterm()
    export_ct2(options.bundle, options.out, quantization=options.quantization, overwrite=options.overwrite)
    return CommandResult(f"{options.out}: a CTranslate2 model ({options.quantization}); translate with --engine ct2")
