"""What a run says before its first update."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dstransformer.config import Config, precision_of, zero_stage
from dstransformer.corpus import Corpus
from dstransformer.errors import ConfigError
from dstransformer.model import parameter_count
from dstransformer.tracking import resolve_tracking_uri
from dstransformer.training.estimate import GIB, approximate_updates
from dstransformer.training.world import World

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def describe_start(
    run: Path,
    config: Config,
    ds_config: Mapping[str, Any],
    corpus: Corpus,
    world_size: int,
    hardware: Mapping[str, str],
) -> Iterator[str]:
    """A few lines: where the run lies, what it trains on, what it trains, with what, how long, and where MLflow is."""
    info, splits = corpus.manifest, corpus.manifest.splits
    parameters = parameter_count(config.model, corpus.tokenizer.vocab_size)
    updates = config.training.max_updates
    epochs = updates / approximate_updates(config, corpus)
    machines = ", ".join(f"{name} {value}" for name, value in hardware.items())
    tracked = f"{resolve_tracking_uri(config.tracking.uri, run)}, experiment {config.tracking.experiment}"
    yield f"run       {run.absolute().name} in {run.absolute()}"
    yield (
        f"corpus    {corpus.path}: {info.src_lang}-{info.tgt_lang}, {splits['train'].pairs:,} pairs, "
        f"vocabulary {corpus.tokenizer.vocab_size:,}"
    )
    yield f"model     {parameters:,} parameters, {precision_of(ds_config)}, ZeRO stage {zero_stage(ds_config)}"
    yield f"hardware  {world_size} {'rank' if world_size == 1 else 'ranks'}: {machines}"
    yield f"plan      {updates:,} updates, about {epochs:,.1f} epochs"
    yield f"MLflow    {tracked if config.tracking.enabled else 'off (tracking.enabled)'}"


def check_memory(config: Config, corpus: Corpus, world: World) -> None:
    """Refuse a model that cannot even be built. Collective.

    Raises:
        ConfigError: The fp32 weights, which every process of a machine builds whole, exceed the machine's memory.
    """
    together = world.gather(platform.node()).count(platform.node())
    parameters = parameter_count(config.model, corpus.tokenizer.vocab_size)
    needed, there = 4 * parameters * together, machine_memory()
    with world.together():
        if needed > there:
            raise ConfigError(
                f"the model has {parameters:,} parameters: building it takes {needed / GIB:,.0f} GiB on "
                f"{platform.node()} (4 bytes a parameter in each of {together} processes), which has "
                f"{there / GIB:,.0f} GiB; lower model.num_layers, model.d_model or model.d_ff, or start fewer processes"
            )


def machine_memory() -> int:
    """Bytes of memory that the processes of this machine may use: its own, or the limit of its container."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(physical, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return physical
