"""Composes the DeepSpeed JSON: fragments in ``ds_configs`` configure the hardware, the experiment adds the rest."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from dstransformer.config.deepspeed_checks import check_fragment, iter_values
from dstransformer.config.schema import OPTIMIZERS, Config
from dstransformer.errors import ConfigError, shown
from dstransformer.io.json_text import MAX_BYTES, JsonError, parse_json

Precision = Literal["fp32", "bf16", "fp16"]

_HERE = Path(__file__).parent
_PACKAGED = _HERE / "ds_configs"  # in a wheel
_CHECKOUT = _HERE.parents[1] / "ds_configs"  # in a checkout

#: In place of the name of a precision: bf16 where every device has its instructions, else fp32. Chosen when a run
#: starts, see :mod:`dstransformer.training.plan`.
AUTO_PRECISION = "auto_precision"

#: Maximum number of processes; catches typos.
MAX_WORLD_SIZE = 1_000_000

#: The lowest ZeRO stage at which each can be offloaded to CPU memory.
OFFLOAD_STAGES = {"offload_optimizer": 1, "offload_param": 3}


def fragments_folder() -> Path:
    """The folder of the DeepSpeed fragments, in an installed wheel or in a checkout."""
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


def fragment_names() -> list[str]:
    """The names of the fragments included in the package."""
    return sorted(path.stem for path in fragments_folder().glob("*.json"))


def compose(config: Config, world_size: int) -> dict[str, Any]:
    """The complete DeepSpeed configuration of an experiment on ``world_size`` processes.

    Merges the fragments listed in ``config.deepspeed``, then adds the keys derived from the experiment. To DeepSpeed a
    packed micro-batch is one sample, so ``train_batch_size`` is the number of micro-batches; for ``auto`` it is the
    smallest, one for each process, and ``auto_precision`` is fp32, which every device has. DeepSpeed's throughput timer
    is off unless a fragment states it.

    Raises:
        ConfigError: A fragment is unknown; two fragments state the same key; a fragment states a derived key or
            ``"auto"``; the ZeRO stage, offloading or precision is invalid, missing or stated twice, or the
            optimizer cannot do with it; or the world size does not divide ``batch.micro_batches``.
    """
    merged: dict[str, Any] = {}
    stated_by: dict[tuple[str, ...], str] = {}
    for position, name in enumerate(config.deepspeed):
        if name in config.deepspeed[:position]:
            raise ConfigError(f"the DeepSpeed fragment {shown(name)} is named twice: name it once")
        fragment, origin = read_fragment("fp32" if name == AUTO_PRECISION else name)
        origin = f"fragment {name!r}" if name == AUTO_PRECISION else origin
        check_fragment(fragment, origin)
        for path, value in iter_values(fragment):
            _add_value(merged, stated_by, path, value, origin)
    _check_merged(merged, config)
    # It waits for the device twice per micro-batch, for a figure that the metrics have anyway.
    merged.setdefault("timers", {}).setdefault("throughput", {"enabled": False})
    micro_batches = world_size if config.batch.micro_batches == "auto" else config.batch.micro_batches
    accumulation = accumulation_steps(micro_batches, world_size)
    return merged | {
        "train_batch_size": micro_batches,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": config.optimizer.clip_norm,
        "steps_per_print": None,
    }


def accumulation_steps(micro_batches: int, world_size: int) -> int:
    """The number of micro-batches that each process computes per update.

    Raises:
        ConfigError: ``world_size`` is below 1, above ``MAX_WORLD_SIZE`` or does not divide ``micro_batches``.
    """
    if world_size < 1:
        raise ConfigError(f"{world_size} processes cannot train: the world size is 1 or more")
    if world_size > MAX_WORLD_SIZE:
        raise ConfigError(f"a world size of {world_size} is more than {MAX_WORLD_SIZE:,}: is it a typo?")
    if micro_batches % world_size:
        divisors = [n for n in range(1, micro_batches + 1) if micro_batches % n == 0]
        raise ConfigError(
            f"batch.micro_batches = {micro_batches} cannot be split evenly over {world_size} processes: use a multiple "
            f"of {world_size} (--set batch.micro_batches={-(-micro_batches // world_size) * world_size}), "
            f"or {', '.join(map(str, divisors))} processes"
        )
    return micro_batches // world_size


def precision_of(ds_config: Mapping[str, Any]) -> Precision:
    """The dtype of the forward and backward pass in a configuration from :func:`compose`."""
    half_precisions: tuple[Precision, ...] = ("bf16", "fp16")
    return next((name for name in half_precisions if _is_enabled(ds_config, name)), "fp32")


def zero_stage(ds_config: Mapping[str, Any]) -> int:
    """The ZeRO stage of a configuration from :func:`compose`."""
    return int(ds_config["zero_optimization"]["stage"])


def offloads_optimizer(ds_config: Mapping[str, Any]) -> bool:
    """Whether a configuration from :func:`compose` offloads the optimizer states."""
    section = ds_config["zero_optimization"].get("offload_optimizer", {})
    return bool(section.get("device", "none") != "none")


def _is_enabled(ds_config: Mapping[str, Any], precision: str) -> bool:
    return bool(ds_config.get(precision, {}).get("enabled", False))


def read_fragment(name: str) -> tuple[dict[str, Any], str]:
    """Read a fragment of the package, or one that is the path of a file.

    Returns:
        Its content, and what messages call it.

    Raises:
        ConfigError: There is no such fragment, or it is not a JSON object.
    """
    is_path = name.endswith(".json") or "/" in name
    path = Path(name) if is_path else fragments_folder() / f"{name}.json"
    origin = str(path) if is_path else f"fragment {name!r}"
    if not name.strip():
        raise ConfigError("the name of a DeepSpeed fragment is empty: is a variable unset?")
    if not os.path.lexists(path):
        if is_path:
            raise ConfigError(f"DeepSpeed JSON {shown(name, quote=False, limit=200)} does not exist")
        known, several = [*fragment_names(), AUTO_PRECISION], re.split(r"[,+]", name)
        if set(several) <= set(known):
            raise ConfigError(f"--ds {name}: separate fragments by spaces, --ds {' '.join(several)}")
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"unknown DeepSpeed fragment {shown(name)}: {hint}known: {', '.join(known)}, or the path of a .json file"
        )
    try:
        with path.open("rb") as file:  # may be a pipe
            fragment = parse_json(file.read(MAX_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except JsonError as error:
        raise ConfigError(f"{origin} is not readable JSON: {error}") from None
    if not isinstance(fragment, dict):
        kind = "null" if fragment is None else f"a {type(fragment).__name__}"
        raise ConfigError(f"{origin} holds {kind}, not a JSON object")
    return fragment, origin


def _check_merged(merged: Mapping[str, Any], config: Config) -> None:
    """Refuse missing values, which DeepSpeed would choose silently, and contradictions, which it would report late."""
    fragments = f"the DeepSpeed fragments [{', '.join(config.deepspeed)}]"
    if "stage" not in merged.get("zero_optimization", {}):
        raise ConfigError(f"{fragments} state no ZeRO stage: add one of zero0, zero1, zero2, zero3")
    if not any("enabled" in merged.get(name, {}) for name in ("bf16", "fp16")):
        raise ConfigError(f"{fragments} state no precision: add one of fp32, bf16, fp16, auto_precision")
    if _is_enabled(merged, "bf16") and _is_enabled(merged, "fp16"):
        raise ConfigError(f"{fragments} enable both bf16 and fp16: choose one")
    zero = merged["zero_optimization"]
    for part, min_stage in OFFLOAD_STAGES.items():
        device = zero.get(part, {}).get("device", "none")
        if device == "nvme":
            raise ConfigError(
                f"{fragments} set {part} to nvme, but checkpoints do not include files on NVMe: write "
                f'zero_optimization.{part}.device "cpu"'
            )
        if device == "cpu" and zero["stage"] < min_stage:
            raise ConfigError(
                f"{fragments} set {part} to cpu at ZeRO stage {zero['stage']}, "
                f"which needs stage {'3' if min_stage == 3 else '1, 2 or 3'}: choose that stage, or remove {part}"
            )
    optimizer = config.optimizer.name
    if zero["stage"] and not OPTIMIZERS[optimizer].zero:
        raise ConfigError(
            f"optimizer.name = {optimizer}, but {fragments} divide its state, which it cannot: take zero0"
        )
    if offloads_optimizer(merged) and not OPTIMIZERS[optimizer].offload:
        able = " or ".join(name for name, facts in OPTIMIZERS.items() if facts.offload)
        raise ConfigError(
            f"optimizer.name = {optimizer}, but {fragments} offload the optimizer state, which only {able} can update "
            f"in CPU memory: leave out offload_optimizer, or set optimizer.name={able}"
        )


def _add_value(
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
