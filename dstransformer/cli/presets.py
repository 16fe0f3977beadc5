"""``dst presets``: list the presets included in the package."""

from __future__ import annotations

from dstransformer.cli.options import Command, CommandResult


class Presets(Command, examples=("dst presets",)):
    """List the presets."""


@Presets.handler
def run(_: Presets) -> CommandResult:
    """List the names of the presets, and the first sentence of each summary."""
    from dstransformer.config import preset_names, preset_summary

    names = preset_names()
    width = max(map(len, names))
    first = {name: preset_summary(name).partition(". ")[0].rstrip(".") for name in names}
    return CommandResult("\n".join(f"{name:<{width}}  {summary}" for name, summary in first.items()))
