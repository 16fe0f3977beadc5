"""``dst completion``: print the script that completes ``dst`` in a shell."""

from __future__ import annotations

from typing import Literal

from dstransformer.cli.options import Command, CommandResult
from dstransformer.io.flags import argument


class Completion(
    Command,
    epilog='In ~/.bashrc or ~/.zshrc, the latter after compinit: eval "$(dst completion bash)", or zsh.',
    examples=("dst completion bash",),
):
    """Print a script that completes dst in a shell."""

    shell: Literal["bash", "zsh", "fish"] = argument(None, "the shell")


@Completion.handler
def run(options: Completion) -> CommandResult:
    """Print the script."""
    from dstransformer.cli.program import build_parser
    from dstransformer.config import AUTO_PRECISION, fragment_names, preset_names
    from dstransformer.io.command import completion_script

    values = {"preset": preset_names(), "ds": [*fragment_names(), AUTO_PRECISION]}
    return CommandResult(completion_script(build_parser(), options.shell, values))
