"""What differs between where a model was trained and where it is trained again."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from dstransformer import __version__
from dstransformer.distributed.world import World
from dstransformer.training.provenance import VERSIONS, describe_hardware, git_revision

#: What the parts of a provenance are called in messages.
_NAMES = {
    "dstransformer": "dstransformer",
    "git_revision": "revision",
    "world_size": "processes",
    "device": "device",
    "threads": "threads",
    "cpu_kernels": "CPU kernels",
    "gpu_kernels": "GPU kernels",
}


def describe_environment(world: World, processes: int, threads: str | None) -> dict[str, Any]:
    """The part of a provenance that an environment determines.

    Args:
        world: This process alone.
        processes: The number of processes that train.
        threads: The number of threads of each on a CPU; None for that of this process.
    """
    hardware = describe_hardware(world)
    if threads is not None and "threads" in hardware:
        hardware["threads"] = threads
    return {
        "dstransformer": __version__,
        "git_revision": git_revision(),
        "versions": {name: version(name) for name in VERSIONS},
        "hardware": hardware,
        "world_size": processes,
    }


def differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """What differs between two provenances that can change the last bits of a result, by name: recorded, and here.

    What an older version did not record counts as different.
    """
    before, after = _flatten(recorded), _flatten(here)
    names = dict.fromkeys([*before, *after])
    return {
        name: (before.get(name, "not recorded"), after.get(name, "none"))
        for name in names
        if before.get(name) != after.get(name)
    }


def _flatten(provenance: Mapping[str, Any]) -> dict[str, str]:
    hardware = provenance.get("hardware") or {}
    whole = {
        "dstransformer": provenance.get("dstransformer"),
        "git_revision": provenance.get("git_revision"),
        **(provenance.get("versions") or {}),
        **hardware,
        "world_size": provenance.get("world_size"),
    }
    return {_NAMES.get(name, name): str(value) for name, value in whole.items() if value is not None}
