"""Shared by the commands: their result type, and the options for an experiment and for decoding."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

from dstransformer.errors import UserError, shown
from dstransformer.io.command import Commands
from dstransformer.io.flags import Options, argument, option
from dstransformer.io.progress import note

if TYPE_CHECKING:
    from dstransformer.decoding import TextDecoder, Translator
    from dstransformer.decoding.formats import Request
    from dstransformer.distributed.launcher import Processes
    from dstransformer.exchange.ct2_engine import Export
    from dstransformer.model import Bundle

#: The module of an extra that adds to a command, by the name of the command; what it has stands where it is used.
ADDITIONS = {
    "evaluate": "dstransformer.extras.parsing.cli",
    "translate": "dstransformer.extras.markup.cli",
}


#: What help says of an experiment's preset, and of a bundle.
PRESET_HELP = "name of a preset (dst presets) or a YAML file; before --set and --ds"
BUNDLE_HELP = "folder of a bundle, a checkpoint or a run, or its address (s3://…)"


class CommandResult(NamedTuple):
    """The result of a command: text for stdout, and the exit status."""

    text: str = ""
    status: int = 0


class Command(Options):
    """A command of ``dst``: its name is that of the class, its fields are its options, its docstring is its help.

    A subclass is given its ``examples``; ``in_processes``, if all processes of a launcher run it; and what else its
    :class:`~dstransformer.io.command.CommandParser` takes.

    Attributes:
        commands: Its own commands, one of which must be given.
        metavar: What help calls one of them.
        act: The function that :meth:`handler` decorates.
    """

    commands: ClassVar[Sequence[type[Command]]] = ()
    metavar: ClassVar[str] = "COMMAND"
    settings: ClassVar[Mapping[str, Any]] = {}
    act: ClassVar[Callable[[Any], CommandResult]]
    in_processes: ClassVar[bool] = False

    def __init_subclass__(cls, *, examples: Sequence[str] = (), in_processes: bool = False, **settings: Any) -> None:
        super().__init_subclass__()
        cls.settings = {"examples": examples, **settings}
        cls.in_processes = in_processes

    @classmethod
    def handler(cls, act: Callable[[Self], CommandResult]) -> Callable[[Self], CommandResult]:
        """Decorate the function that carries out the command."""
        cls.act = staticmethod(act)
        return act

    @classmethod
    def add_parser(cls, commands: Commands) -> None:
        """Add its parser."""
        name = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()
        summary, _, details = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")
        words = summary.replace("\n", " ").removesuffix(".")
        settings = {"description": details.replace("\n", " ")} if details else {}
        parser = commands.add_parser(
            name, help=words if words[1].isupper() else f"{words[0].lower()}{words[1:]}", **settings, **cls.settings
        )
        parser.set_defaults(command=cls)
        cls.add_to(parser)
        if cls.commands:
            subcommands = parser.add_commands(cls.metavar)
            for command in cls.commands:
                command.add_parser(subcommands)


def folder(name: str) -> Path:
    """The type of an option that names a folder.

    Raises:
        argparse.ArgumentTypeError: The name is empty, as from an unset variable, or the address of something remote.
    """
    if re.match(r"[a-z][a-z0-9+.-]+://", name):
        raise argparse.ArgumentTypeError(f"{name[:60]!r} is an address: name a folder on this machine")
    return Path(file(name))


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


def utf8(text: str) -> str:
    """The type of an option that takes text. Bytes that are not UTF-8 arrive as lone surrogates and are refused."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not UTF-8: convert it") from None
    return text


def tokenizer(name: str) -> str:
    """The type of ``--tokenize``: a value of ``validation.tokenize``.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    from dstransformer.config.schema import BleuTokenizer

    if name not in (names := get_args(BleuTokenizer)):
        raise argparse.ArgumentTypeError(f"{name[:60]!r} is not a tokenizer of BLEU: give one of {', '.join(names)}")
    return name


Folder = Annotated[Path, folder]
File = Annotated[str, file]
Text = Annotated[str, utf8]
Tokenizer = Annotated[str, tokenizer]


class Overrides(Options):
    """What changes an experiment."""

    overrides: Sequence[str] = option("override one or more values", "a.b=c", flag="--set", action="extend", default=())
    ds: Sequence[str] = option(
        "one or more DeepSpeed fragments or JSON files, instead of the preset's", "NAME", action="extend", default=()
    )


class ExperimentOptions(Overrides):
    """What defines an experiment."""

    preset: str = argument("PRESET", PRESET_HELP)


class Device(Options):
    """Where to compute with a bundle."""

    device: str | None = option("cpu, cuda, cuda:1 ... (a GPU if there is one)")
    precision: Literal["fp32", "bf16", "fp16"] | None = option(
        "precision of the weights (bf16 on a GPU, fp32 on a CPU)"
    )


class _Search(Options):
    """How a bundle decodes."""

    beam: int | None = option("beam size, 1 to 1000 (the bundle's)", "N")
    length_penalty: float | None = option("length penalty, 0 to 10 (the bundle's)", "ALPHA")
    max_input_tokens: int | None = option("limit of an input, see --long; 0: none (the bundle's)", "N")
    long: Literal["cut", "split", "refuse"] | None = option(
        "longer inputs: cut them, divide them at the ends of sentences, or translate nothing (the bundle's)"
    )
    min_tokens: int | None = option("minimum tokens before the end (the bundle's)", "N")
    max_extra_tokens: int | None = option(
        "maximum output length beyond the input length, without the ends (the bundle's)", "N"
    )
    batch_tokens: int | None = option(
        "source tokens per batch, on a GPU up to 8 times as many; reduced for beams wider than 8 (the bundle's)", "N"
    )
    prune: float | None = option(
        "drop hypotheses whose log-probability is this much below the best one's; 0: none (the bundle's)", "NATS"
    )


class Search(Device, _Search):
    """How and where a bundle decodes."""


class OneBundle(Options):
    """The bundle of commands that decode."""

    bundle: Annotated[Path, bundle_folder] = argument("BUNDLE", BUNDLE_HELP)


class EngineOptions(Search, OneBundle):
    """Which engine decodes."""

    engine: Literal["torch", "ct2"] = option(
        "ct2: CTranslate2, with its own search and scores; BUNDLE may then be what dst export ct2 wrote (torch)",
        default="torch",
    )
    no_shortlist: bool = option("with --engine ct2: all pieces, also if the export has a shortlist")


class Lines(Search, OneBundle):
    """Commands that read one sentence per line and write one line for each."""

    file: File | None = argument("FILE", "text, compressed or not; - is stdin (stdin)", default=None)
    output: File | None = option("file for the translations, gzipped if it ends in .gz; - is stdout (stdout)", "FILE")
    overwrite: bool = option("replace an existing --output")
    resume: bool = option(
        "keep finished parts in OUTPUT.parts: after an interruption the same command resumes (several processes always "
        "do)"
    )


class Target(Options):
    """The direction of models of several directions."""

    to: Text | None = option(
        "target language, or tag, of a model of several directions; without it each sentence begins with its tag",
        "LANG",
    )


def uses_ct2(options: EngineOptions) -> bool:
    """Whether the engine of :class:`EngineOptions` is CTranslate2; refuses an export, and an option, without it."""
    from dstransformer.io.products import export_tool

    if options.engine == "ct2":
        return True
    if export_tool(options.bundle) == "ct2":
        raise UserError(f"{options.bundle} is an export for CTranslate2, not a bundle: add --engine ct2")
    if options.no_shortlist:
        raise UserError("--no-shortlist is for --engine ct2: add it, or leave that out")
    return False


def decode_lines(
    options: Lines,
    load: Callable[[], TextDecoder],
    request: Request | None = None,
    extra: Mapping[str, Any] | None = None,
    alignments: str | None = None,
) -> CommandResult:
    """Translate the lines of the files of :class:`Lines`. Several processes share the lines.

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

    processes = read_processes(os.environ)
    in_parts = processes.world_size > 1 or options.resume
    _check_files(options, processes, alignments, in_parts=in_parts)
    if processes.world_size > 1:
        import torch

        if options.device is None and torch.cuda.is_available():
            options.device = f"cuda:{processes.local_rank % torch.cuda.device_count()}"
        torch.set_num_threads(own_threads())
    bar = options.output not in (None, "-") or sys.stdout is None or not sys.stdout.isatty()
    unit = "sentences" if request is not None and request.split else "lines"
    with reporting(unit, bar=bar and processes.rank == 0) as progress:
        if in_parts:
            assert options.file is not None
            assert options.output is not None
            translate_in_parts(
                options.file, options.output, load, request or Request(), processes,
                extra=extra, overwrite=options.overwrite, progress=progress if processes.rank == 0 else None,
            )  # fmt: skip
            return CommandResult()
        done = translate_files(
            options.file, options.output, load, request,
            alignments=alignments, overwrite=options.overwrite, progress=progress,
        )  # fmt: skip
    if options.output not in (None, "-"):
        note(f"dst: {done}")
    return CommandResult()


def _check_files(options: Lines, processes: Processes, alignments: str | None, *, in_parts: bool) -> None:
    """Check that BUNDLE and FILE are not swapped, and that the lines can be translated in parts if they are to be."""
    from dstransformer.io.text import is_stdout

    if options.file and options.bundle.is_file() and Path(options.file).is_dir():
        raise UserError(
            f"the bundle {options.bundle} is a file and the text {options.file} a folder: are they swapped? "
            "Write BUNDLE before FILE"
        )
    if not in_parts:
        return
    if options.file in (None, "-") or is_stdout(options.output):
        who = "--resume needs" if options.resume else f"{processes.world_size} processes need"
        raise UserError(f"{who} a FILE and --output FILE: standard input and output cannot be divided")
    if alignments is not None:
        raise UserError("--alignments is for one process without --resume: use `dst align` afterwards")


def load_translator(options: Search, bundle: Path | Bundle, **more: Any) -> Any:
    """Load what decodes with a bundle, with the options of :class:`Search`, and ``--to`` and ``--ensemble`` if any.

    The rest is as for :func:`dstransformer.decoding.commands.load_translator`.
    """
    from dstransformer.decoding import commands

    others = vars(options).get("ensemble", ())
    return commands.load_translator(bundle, others=others, **_settings(options), **more)


def load_ct2(options: Search, source: Path | Bundle | Export) -> Translator:
    """Load a translator that searches with CTranslate2, with ``--to`` and ``--no-shortlist`` if any.

    See :func:`dstransformer.exchange.ct2_engine.open_ct2`.
    """
    from dstransformer.exchange.ct2_engine import open_ct2

    shortlist = not vars(options).get("no_shortlist", False)
    return open_ct2(source, threads=own_threads(), shortlist=shortlist, **_settings(options))


def _settings(options: Search) -> dict[str, Any]:
    """What loads a translator: device, precision, ``to`` and the settings of the search; None keeps the bundle's."""
    from dstransformer.decoding.commands import OPTIONS

    search = {name: getattr(options, option[2:].replace("-", "_")) for name, option in OPTIONS.items()}
    return {"device": options.device, "precision": options.precision, "to": vars(options).get("to"), **search}


def own_threads() -> int:
    """The threads of this process: its cores, divided by the processes on this machine."""
    from dstransformer.distributed.hardware import usable_cores
    from dstransformer.distributed.launcher import local_world_size, read_processes

    return max(1, len(usable_cores()) // local_world_size(os.environ, read_processes(os.environ)))
