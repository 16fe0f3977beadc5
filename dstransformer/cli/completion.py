"""``dst completion``: print the script that completes ``dst`` in a shell."""

from __future__ import annotations

import argparse

from dstransformer.cli.options import CommandResult
from dstransformer.io.command import Commands


def add_parser(commands: Commands) -> None:
    """Add the parser of ``dst completion``."""
    parser = commands.add_parser(
        "completion",
        help="print a script that completes dst in a shell",
        epilog='In ~/.bashrc or ~/.zshrc, the latter after compinit: eval "$(dst completion bash)", or zsh.',
        examples=("dst completion bash",),
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> CommandResult:
    """Print the script."""
    from dstransformer.cli.program import build_parser
    from dstransformer.config import AUTO_PRECISION, fragment_names, preset_names
    from dstransformer.io.completion import completion_script

    values = {"preset": preset_names(), "ds": [*fragment_names(), AUTO_PRECISION]}
    return CommandResult(completion_script(build_parser(), options.shell, values))
