"""The entry point of ``dst``: parses the arguments and runs the command; and ``dst completion``.

Command modules import what a handler needs inside the handler, so that ``dst --help`` is fast.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Literal

from dstransformer import __version__
from dstransformer.cli.options import Command, CommandResult
from dstransformer.io.command import CommandParser, print_text, run_guarded, set_verbosity
from dstransformer.io.flags import argument

#: The commands by what they are for; ``dst --help`` lists them so.
GROUPS = {
    "every day": ("cli.train:Train", "cli.translate:Translate", "cli.evaluate:Evaluate", "cli.ds_config:Presets"),
    "models": (
        "cli.export:Export", "cli.import_model:Import", "extras.serving.cli:Serve", "cli.checkpoints:Average",
        "extras.reproduction.cli:Sign", "extras.reproduction.cli:Verify",
    ),
    "runs": (
        "cli.checkpoints:Checkpoints", "extras.plots.cli:Plot", "cli.train:Track", "extras.reproduction.cli:Reproduce",
        "extras.doctor.cli:Doctor", "cli.ds_config:DsConfig", "cli.launch_files:LaunchFiles",
        "extras.distill.cli:Distill", "cli.program:Completion",
    ),
    "translations": ("extras.rerank.cli:Rerank", "cli.score:Score", "cli.score:Align"),
    "the paper": (
        "extras.parsing.cli:Parse", "extras.paper.cli:Attention", "extras.paper.cli:Table1", "extras.paper.cli:Table2",
        "extras.paper.cli:Table3",
    ),
}  # fmt: skip


class Completion(
    Command,
    epilog='In ~/.bashrc or ~/.zshrc, the latter after compinit: eval "$(dst completion bash)", or zsh.',
    examples=("dst completion bash",),
):
    """Print a script that completes dst in a shell."""

    shell: Literal["bash", "zsh", "fish"] = argument(None, "the shell")


@Completion.handler
def complete(options: Completion) -> CommandResult:
    """Print the script."""
    from dstransformer.config import AUTO_PRECISION, fragment_names, preset_names
    from dstransformer.io.command import completion_script

    values = {"preset": preset_names(), "ds": [*fragment_names(), AUTO_PRECISION]}
    return CommandResult(completion_script(build_parser(), options.shell, values))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status."""
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    return run_guarded("dst", lambda: _run_command(command_line), reports_errors=lambda: _reports_errors(command_line))


def _run_command(arguments: Sequence[str]) -> int:
    try:
        options = parse(arguments)
    finally:
        print_text("")  # flush the output of --help and --version
    set_verbosity(options)
    command: type[Command] = options.command
    result = command.act(command.of(options))
    print_text(result.text)
    return result.status


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line."""
    return build_parser().parse_args(arguments)


def build_parser() -> CommandParser:
    """Build the parser of ``dst`` with all its commands."""
    parser = CommandParser(
        prog="dst",
        description="Train, translate with and evaluate Transformers (Vaswani et al., 2017) on DeepSpeed.",
        epilog="An error is one line on stderr; DST_DEBUG=1 in the environment adds the traceback.",
    )
    parser.add_argument("--version", action="version", version=f"dst {__version__}")
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)  # deepspeed passes it
    commands = parser.add_commands("COMMAND")
    headings = {}
    for heading, names in GROUPS.items():
        before = len(commands.choices)
        for name in names:
            command: type[Command] = resolve_name(f"dstransformer.{name}")
            command.add_parser(commands)
        headings[list(commands.choices)[before]] = heading
    parser.headings = headings
    return parser


def _reports_errors(arguments: Sequence[str]) -> bool:
    """Whether this process reports errors that all processes of the run raise: true on rank 0.

    A command that does not run in several processes ignores launcher variables.
    """
    commands = build_parser().commands
    choices = commands.choices if commands else {}
    command = next((choices[word] for word in arguments if word in choices), None)
    if command is None or not command.get_default("command").in_processes:
        return True
    from dstransformer.distributed.launcher import LauncherError, read_processes

    try:
        return read_processes(os.environ, require_rank=False).rank == 0
    except LauncherError:
        return True
