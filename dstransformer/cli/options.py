"""Shared by the commands: their result type, and the options for an experiment and for decoding."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from dstransformer.errors import UserError, shown
from dstransformer.io.command import CommandParser
from dstransformer.io.progress import note

if TYPE_CHECKING:
    from dstransformer.decoding import TextDecoder, Translator
    from dstransformer.decoding.commands import Decoder
    from dstransformer.decoding.formats import Request
    from dstransformer.distributed.launcher import Processes
    from dstransformer.exchange.ct2_engine import Export
    from dstransformer.model import Bundle

#: The module of an extra that adds to a command, by the name of the command; what it has stands where it is used.
ADDITIONS = {
    "evaluate": "dstransformer.extras.parsing.cli",
    "translate": "dstransformer.extras.markup.cli",
}


class CommandResult(NamedTuple):
    """The result of a command: text for stdout, and the exit status."""

    text: str = ""
    status: int = 0


Handler = Callable[[argparse.Namespace], CommandResult]


def folder(name: str) -> Path:
    """The type of an option that names a folder.

    Raises:
        argparse.ArgumentTypeError: The name is empty, as from an unset variable, or the address of something remote.
    """
    if not name:
        raise argparse.ArgumentTypeError("the name is empty: is a variable unset?")
    if re.match(r"[a-z][a-z0-9+.-]+://", name):
        raise argparse.ArgumentTypeError(f"{name[:60]!r} is an address: name a folder on this machine")
    return Path(name)


def bundle_folder(name: str) -> Path:
    """The type of an option that names what holds a bundle: a folder, or an address, from which it is fetched."""
    from dstransformer.io.remote import is_address

    if not is_address(name):
        return folder(name)
    from dstransformer.training.checkpoints.mirror import fetch_bundle

    return fetch_bundle(name)


def file(name: str) -> str:
    """The type of an option that names a file; ``-`` is a standard stream.

    Raises:
        argparse.ArgumentTypeError: The name is empty, as from an unset variable.
    """
    if not name:
        raise argparse.ArgumentTypeError("the name is empty: is a variable unset?")
    return name


def run_name(name: str) -> str:
    """The type of ``--name``.

    Raises:
        argparse.ArgumentTypeError: The name is empty, has control characters or is not UTF-8: MLflow cannot store it.
    """
    if not name.strip() or not name.isprintable():
        raise argparse.ArgumentTypeError(f"{name[:60]!r} is empty or has characters that cannot be printed")
    return name


def utf8(text: str) -> str:
    """The type of an option that takes text. Bytes that are not UTF-8 arrive as lone surrogates and are refused."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not UTF-8: convert it") from None
    return text


def run_tag(tag: str) -> tuple[str, str]:
    """The type of ``--tag``: ``NAME=VALUE``.

    Raises:
        argparse.ArgumentTypeError: There is no ``=``, or the name is one that MLflow cannot store or has an option.
    """
    name, equals, value = tag.partition("=")
    if not equals or not re.fullmatch(r"[\w.\-/ ]{1,250}", name) or not value.isprintable():
        raise argparse.ArgumentTypeError(f"{tag[:60]!r} is not of the form NAME=VALUE, with letters, digits or . - _ /")
    if name == "mlflow.runName":
        raise argparse.ArgumentTypeError(f"{tag[:60]!r} would rename the run: use --name")
    return name, value


def registered_name(name: str) -> str:
    """The type of ``--register``: a name that MLflow's model registry takes.

    Raises:
        argparse.ArgumentTypeError: The registry does not accept the name.
    """
    if not name.strip() or not name.isprintable() or len(name) > 250 or set(name) & set("/:\\'\"`%") or name in "..":
        raise argparse.ArgumentTypeError(
            f"{name[:60]!r} cannot name a registered model: write letters, digits, spaces and - _ . only"
        )
    return name


def add_experiment(parser: CommandParser, *, required: bool = True) -> None:
    """Add the options that define an experiment: preset, overrides, DeepSpeed fragments."""
    parser.add_argument(
        "preset",
        metavar="PRESET",
        nargs=None if required else "?",
        help="name of a preset (dst presets) or a YAML file; before --set and --ds",
    )
    fragments = "one or more DeepSpeed fragments or JSON files, instead of the preset's"
    add_overrides(parser, "override one or more values", fragments)


def add_overrides(parser: CommandParser, values: str, fragments: str) -> None:
    """Add ``--set`` and ``--ds``, with these texts."""
    for flag, name, metavar, text in (("--set", "overrides", "a.b=c", values), ("--ds", "ds", "NAME", fragments)):
        parser.add_argument(flag, dest=name, nargs="+", action="extend", default=[], metavar=metavar, help=text)


def add_decoding(parser: CommandParser, *, output: str | None = "--output", required: bool = True) -> None:
    """Add the options of commands that translate with a bundle.

    Args:
        parser: The parser of the command.
        output: The option that names what the command writes; None for a server, which has its own limit of inputs.
        required: Whether a bundle must be named. If not, there may be several, and ``bundle`` is a list.
    """
    parser.add_argument(
        "bundle",
        metavar="BUNDLE",
        type=bundle_folder,
        nargs=None if required else "*",
        help="folder of a bundle, a checkpoint or a run, or its address (s3://…)",
    )
    parser.add_argument("--beam", type=int, metavar="N", help="beam size, 1 to 1000 (the bundle's)")
    parser.add_argument("--length-penalty", type=float, metavar="ALPHA", help="length penalty, 0 to 10 (the bundle's)")
    if output is not None:
        parser.add_argument(
            "--max-input-tokens",
            type=int,
            metavar="N",
            help="limit of an input, see --long; 0: none (the bundle's)",
        )
        parser.add_argument(
            "--long",
            choices=("cut", "split", "refuse"),
            help="longer inputs: cut them, divide them at the ends of sentences, or translate nothing (the bundle's)",
        )
        parser.add_argument("--overwrite", action="store_true", help=f"replace an existing {output}")
    parser.add_argument("--min-tokens", type=int, metavar="N", help="minimum tokens before the end (the bundle's)")
    parser.add_argument(
        "--max-extra-tokens",
        type=int,
        metavar="N",
        help="maximum output length beyond the input length, without the ends (the bundle's)",
    )
    parser.add_argument(
        "--batch-tokens",
        type=int,
        metavar="N",
        help="source tokens per batch, on a GPU up to 8 times as many; reduced for beams wider than 8 (the bundle's)",
    )
    parser.add_argument(
        "--prune",
        type=float,
        metavar="NATS",
        help="drop hypotheses whose log-probability is this much below the best one's; 0: none (the bundle's)",
    )
    add_device(parser)


def add_engine(parser: CommandParser) -> None:
    """Add the options of commands whose engine may be CTranslate2."""
    parser.add_argument(
        "--engine",
        choices=("torch", "ct2"),
        default="torch",
        help="ct2: CTranslate2, with its own search and scores; BUNDLE may then be what dst export ct2 wrote (torch)",
    )
    parser.add_argument(
        "--no-shortlist", action="store_true", help="with --engine ct2: all pieces, also if the export has a shortlist"
    )


def uses_ct2(options: argparse.Namespace) -> bool:
    """Whether the engine of :func:`add_engine` is CTranslate2; refuses an export, and an option, without it."""
    from dstransformer.io.products import export_tool

    if options.engine == "ct2":
        return True
    if export_tool(options.bundle) == "ct2":
        raise UserError(f"{options.bundle} is an export for CTranslate2, not a bundle: add --engine ct2")
    if options.no_shortlist:
        raise UserError("--no-shortlist is for --engine ct2: add it, or leave that out")
    return False


def tokenizer(name: str) -> str:
    """The type of ``--tokenize``: a value of ``validation.tokenize``.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    from dstransformer.config.schema import BleuTokenizer

    if name not in (names := get_args(BleuTokenizer)):
        raise argparse.ArgumentTypeError(f"{name[:60]!r} is not a tokenizer of BLEU: give one of {', '.join(names)}")
    return name


def add_target(parser: CommandParser) -> None:
    """Add the option of commands that translate with models of several directions."""
    parser.add_argument(
        "--to",
        type=utf8,
        metavar="LANG",
        help="target language, or tag, of a model of several directions; without it each sentence begins with its tag",
    )


def add_device(parser: CommandParser) -> None:
    """Add the options of commands that compute with a bundle: device and precision."""
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (a GPU if there is one)")
    parser.add_argument(
        "--precision", choices=("fp32", "bf16", "fp16"), help="precision of the weights (bf16 on a GPU, fp32 on a CPU)"
    )


def add_lines(parser: CommandParser, outputs: str) -> None:
    """Add the options of commands that read one sentence per line and write one line for each.

    Args:
        parser: The parser of the command.
        outputs: What it writes, for the help.
    """
    parser.add_argument(
        "file", type=file, nargs="?", metavar="FILE", help="text, compressed or not; - is stdin (stdin)"
    )
    parser.add_argument(
        "--output",
        type=file,
        metavar="FILE",
        help=f"file for the {outputs}, gzipped if it ends in .gz; - is stdout (stdout)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep finished parts in OUTPUT.parts: after an interruption the same command resumes (several processes "
        "always do)",
    )


def decode_lines(
    options: argparse.Namespace,
    load: Callable[[], TextDecoder],
    request: Request | None = None,
    extra: Mapping[str, Any] | None = None,
    alignments: str | None = None,
) -> CommandResult:
    """Translate the lines of the files of :func:`add_lines`. Several processes share the lines.

    Args:
        options: The options.
        load: Builds the translator.
        request: What is written for each line.
        extra: Options that change the output, besides the translator. Parts written with other values are not reused.
        alignments: A file for the alignments of the outputs.

    Raises:
        UserError: BUNDLE and FILE are swapped, or several processes have no file to read or to write.
    """
    from dstransformer.decoding.commands import translate_files
    from dstransformer.decoding.formats import Request
    from dstransformer.decoding.parts import translate_in_parts
    from dstransformer.distributed.launcher import read_processes
    from dstransformer.io.progress import reporting

    _check_order(options)
    processes = read_processes(os.environ)
    in_parts = processes.world_size > 1 or options.resume
    if in_parts:
        _check_parts(options, processes, alignments)
    if processes.world_size > 1:
        _assign_device(options, processes)
    bar = options.output not in (None, "-") or sys.stdout is None or not sys.stdout.isatty()
    unit = "sentences" if request is not None and request.split else "lines"
    with reporting(unit, bar=bar and processes.rank == 0) as progress:
        if in_parts:
            shown = progress if processes.rank == 0 else None
            translate_in_parts(
                options.file,
                options.output,
                load,
                request or Request(),
                processes,
                extra=extra,
                overwrite=options.overwrite,
                progress=shown,
            )
            return CommandResult()
        done = translate_files(
            options.file,
            options.output,
            load,
            request,
            alignments=alignments,
            overwrite=options.overwrite,
            progress=progress,
        )
    if options.output not in (None, "-"):
        note(f"dst: {done}")
    return CommandResult()


def _check_order(options: argparse.Namespace) -> None:
    if options.file and options.bundle.is_file() and Path(options.file).is_dir():
        raise UserError(
            f"the bundle {options.bundle} is a file and the text {options.file} a folder: are they swapped? "
            "Write BUNDLE before FILE"
        )


def _check_parts(options: argparse.Namespace, processes: Processes, alignments: str | None) -> None:
    """Check that lines can be translated in parts."""
    from dstransformer.io.text import is_stdout

    if options.file in (None, "-") or is_stdout(options.output):
        who = "--resume needs" if options.resume else f"{processes.world_size} processes need"
        raise UserError(f"{who} a FILE and --output FILE: standard input and output cannot be divided")
    if alignments is not None:
        raise UserError("--alignments is for one process without --resume: use `dst align` afterwards")


def _assign_device(options: argparse.Namespace, processes: Processes) -> None:
    """Choose the GPU of this process if none was named, and its share of the cores."""
    import torch

    if options.device is None and torch.cuda.is_available():
        options.device = f"cuda:{processes.local_rank % torch.cuda.device_count()}"
    torch.set_num_threads(own_threads())


def load_translator(options: argparse.Namespace, bundle: Path | Bundle) -> Translator:
    """Load a translator with the options of :func:`add_decoding`."""
    from dstransformer import decoding

    return load_decoder(options, bundle, lambda: decoding.Translator)


def load_decoder(
    options: argparse.Namespace, bundle: Path | Bundle, kind: Callable[[], type[Decoder]], *, keep_nan: bool = False
) -> Decoder:
    """Load what decodes with a bundle, with the options of :func:`add_decoding`.

    ``kind`` imports its class; see :func:`dstransformer.decoding.commands.load_translator`.
    """
    from dstransformer.decoding import commands

    return commands.load_translator(
        bundle,
        kind,
        others=vars(options).get("ensemble", ()),
        device=options.device,
        precision=options.precision,
        keep_nan=keep_nan,
        to=vars(options).get("to"),
        **search_settings(options),
    )


def load_ct2(options: argparse.Namespace, source: Path | Bundle | Export) -> Translator:
    """Load a translator that searches with CTranslate2; see :func:`dstransformer.exchange.ct2_engine.open_ct2`."""
    from dstransformer.exchange.ct2_engine import open_ct2

    return open_ct2(
        source,
        device=options.device,
        precision=options.precision,
        threads=own_threads(),
        to=vars(options).get("to"),
        shortlist=not options.no_shortlist,
        **search_settings(options),
    )


def search_settings(options: argparse.Namespace) -> dict[str, float | str | None]:
    """The settings of the search that :func:`add_decoding` has options for; None keeps the bundle's."""
    from dstransformer.decoding.commands import OPTIONS

    return {name: getattr(options, option[2:].replace("-", "_")) for name, option in OPTIONS.items()}


def own_threads() -> int:
    """The threads of this process: its cores, divided by the processes on this machine."""
    from dstransformer.distributed.hardware import usable_cores
    from dstransformer.distributed.launcher import local_world_size, read_processes

    return max(1, len(usable_cores()) // local_world_size(os.environ, read_processes(os.environ)))
