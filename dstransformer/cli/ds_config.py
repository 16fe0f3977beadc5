"""``dst presets`` and ``dst ds-config``: what experiments there are, and the DeepSpeed JSON of one."""

from __future__ import annotations

import json
import shlex

from dstransformer.cli.options import PRESET_HELP, Command, CommandResult, Overrides
from dstransformer.errors import UserError
from dstransformer.io.flags import argument, option
from dstransformer.io.progress import note, say


class Presets(Command, examples=("dst presets",)):
    """List the presets."""


@Presets.handler
def list_presets(_: Presets) -> CommandResult:
    """List the names of the presets, and the first sentence of each summary."""
    from dstransformer.config import preset_names, preset_summary

    names = preset_names()
    width = max(map(len, names))
    first = {name: preset_summary(name).partition(". ")[0].rstrip(".") for name in names}
    return CommandResult("\n".join(f"{name:<{width}}  {summary}" for name, summary in first.items()))


class DsConfig(
    Overrides,
    Command,
    examples=("dst ds-config base --world-size 8 --ds zero1 bf16", "dst ds-config --from deepspeed.json"),
):
    """Print the DeepSpeed JSON of an experiment, or convert one."""

    preset: str | None = argument("PRESET", PRESET_HELP, default=None)
    world_size: int = option("number of processes (1)", default=1)
    source: str | None = option(
        "convert a DeepSpeed JSON of another program: prints what --ds can use of it, and on standard error what --set "
        "says of the rest and what is left out",
        "FILE",
        flag="--from",
    )


@DsConfig.handler
def run(options: DsConfig) -> CommandResult:
    """Compose or convert the DeepSpeed JSON."""
    from dstransformer.config import AUTO_PRECISION, compose, fragment_names, load_config

    if options.source is not None:
        if options.preset is not None or options.overrides or options.ds:
            raise UserError(f"--from {options.source} converts that file alone: leave out PRESET, --set and --ds")
        from dstransformer.config.deepspeed_conversion import convert
        from dstransformer.config.deepspeed_json import read_fragment

        conversion = convert(read_fragment(options.source)[0])
        for line in conversion.notes:
            note(f"note: {line}")
        if conversion.settings:
            say(f"use with: --set {shlex.join(conversion.settings)}")
        return CommandResult(json.dumps(conversion.fragment, indent=2))
    if options.preset is None:
        raise UserError("the following arguments are required: PRESET, before --set and --ds, or --from FILE")
    config = load_config(options.preset, options.overrides, options.ds)
    composed = compose(config, options.world_size)
    if AUTO_PRECISION in config.deepspeed:  # what it is for a new run on this machine
        from dstransformer.training.facts import native_precisions, own_device
        from dstransformer.training.plan import choose_precision, with_precision

        precision, reason = choose_precision(None, native_precisions(own_device()))
        note(f"note: the precision is {precision}, {reason}")
        composed = compose(with_precision(config, precision), options.world_size)
    if not {*config.deepspeed} <= {*fragment_names(), AUTO_PRECISION}:  # a file of the user's
        from dstransformer.training.runtime import check_sections

        check_sections(composed)
    return CommandResult(json.dumps(composed, indent=2))
