"""DeepSpeed JSON from fragments: ``ds_configs`` say how a run uses the hardware, the experiment says what it trains."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from dstransformer.config.schema import Config
from dstransformer.errors import ConfigError

Precision = Literal["fp32", "bf16", "fp16"]

_HERE = Path(__file__).parent
_PACKAGED = _HERE / "ds_configs"  # in a wheel
_CHECKOUT = _HERE.parents[1] / "ds_configs"  # in a checkout

#: Keys that follow from the experiment, and the configuration key (or the reason) that decides each.
OWNED = {
    "train_batch_size": "batch.micro_batches",
    "train_micro_batch_size_per_gpu": "batch.micro_batches",
    "gradient_accumulation_steps": "batch.micro_batches and the number of processes",
    "gradient_clipping": "optimizer.clip_norm",
    "optimizer": "the optimizer section",
    "scheduler": "the schedule section",
    "steps_per_print": "training.log_every",
}


def fragments_folder() -> Path:
    """The folder of the DeepSpeed fragments, in a wheel or in a checkout."""
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


def fragment_names() -> list[str]:
    """The fragments that come with the package."""
    return sorted(path.stem for path in fragments_folder().glob("*.json"))


def compose(config: Config, world_size: int) -> dict[str, Any]:
    """The complete DeepSpeed configuration of an experiment on ``world_size`` processes.

    The fragments that ``config.deepspeed`` names are merged; then the experiment adds what it owns. A micro-batch
    counts as one sample for DeepSpeed, as its sentences are packed: ``train_batch_size`` is the number of them.

    Raises:
        ConfigError: An unknown fragment, a key two fragments state, an owned key, an ``"auto"``, or a
            number of processes that does not divide ``batch.micro_batches``.
    """
    merged: dict[str, Any] = {}
    stated_by: dict[tuple[str, ...], str] = {}
    for name in config.deepspeed:
        fragment, origin = _read(name)
        for path, value in _leaves(fragment):
            if path[0] in OWNED:
                raise ConfigError(
                    f"{origin} states {'.'.join(path)!r}, which follows from {OWNED[path[0]]} of the experiment: "
                    "remove it from the JSON and set it with a preset or --set"
                )
            if value == "auto":
                raise ConfigError(
                    f'{origin}: {".".join(path)} is "auto", which DeepSpeed silently replaces; write a value'
                )
            _state(merged, stated_by, path, value, origin)
    accumulation = accumulation_steps(config.batch.micro_batches, world_size)
    return merged | {
        "train_batch_size": config.batch.micro_batches,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": config.optimizer.clip_norm,
        "steps_per_print": None,
    }


def accumulation_steps(micro_batches: int, world_size: int) -> int:
    """How many micro-batches of an update each process computes, one after the other."""
    if micro_batches % world_size:
        divisors = [n for n in range(1, micro_batches + 1) if micro_batches % n == 0]
        raise ConfigError(
            f"batch.micro_batches = {micro_batches} cannot be dealt to {world_size} processes: use a multiple of "
            f"{world_size} (--set batch.micro_batches={-(-micro_batches // world_size) * world_size}), "
            f"or {', '.join(map(str, divisors))} processes"
        )
    return micro_batches // world_size


def precision_of(ds_config: Mapping[str, Any]) -> Precision:
    """The dtype the forward and backward pass run in."""
    enabled: list[Precision] = [name for name in ("bf16", "fp16") if ds_config.get(name, {}).get("enabled", False)]
    if len(enabled) > 1:
        raise ConfigError("the DeepSpeed configuration enables both bf16 and fp16: choose one")
    return enabled[0] if enabled else "fp32"


def zero_stage(ds_config: Mapping[str, Any]) -> int:
    """The ZeRO stage, 0 where none is stated."""
    return int(ds_config.get("zero_optimization", {}).get("stage", 0))


def offloads_optimizer(ds_config: Mapping[str, Any]) -> bool:
    """Whether optimizer states are kept in CPU memory or on NVMe."""
    device = ds_config.get("zero_optimization", {}).get("offload_optimizer", {}).get("device", "none")
    return bool(device != "none")


def _read(name: str) -> tuple[dict[str, Any], str]:
    packaged = fragments_folder() / f"{name}.json"
    is_path = name.endswith(".json") or "/" in name
    path = Path(name) if is_path else packaged
    origin = str(path) if is_path else f"fragment {name!r}"
    if not path.is_file():
        near = get_close_matches(name, fragment_names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"unknown DeepSpeed fragment {name!r}: {hint}known: {', '.join(fragment_names())}, "
            "or the path of a .json file"
        )
    try:
        fragment = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{origin} is not readable JSON: {error}") from None
    if not isinstance(fragment, dict):
        raise ConfigError(f"{origin} holds a {type(fragment).__name__}, not a JSON object")
    return fragment, origin


def _leaves(tree: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def _state(
    merged: dict[str, Any], stated_by: dict[tuple[str, ...], str], path: Sequence[str], value: Any, origin: str
) -> None:
    path = tuple(path)
    for other, where in stated_by.items():
        shorter = min(len(path), len(other))
        if path[:shorter] == other[:shorter]:
            raise ConfigError(f"{origin} and {where} both state {'.'.join(path)!r}: name only one of them")
    stated_by[path] = origin
    node = merged
    for key in path[:-1]:
        node = node.setdefault(key, {})
    node[path[-1]] = value
