"""What this trainer makes of a DeepSpeed JSON written for another program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple, TypeGuard

from dstransformer.config.deepspeed_checks import DEPRECATED_NAMES, OWNED, find_problems
from dstransformer.config.deepspeed_json import OFFLOAD_STAGES
from dstransformer.config.schema import OPTIMIZERS

#: Types of DeepSpeed's schedulers that begin with a linear warm-up.
WARMUP = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")

#: Those that end with the training, as kinds of ``schedule.kind``.
ENDING = {"WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}

#: Parameters of these schedulers, and what they are called here.
SCHEDULE_VALUES = {
    "warmup_num_steps": "schedule.warmup_steps",
    "warmup_max_lr": "schedule.peak",
    "total_num_steps": "training.max_updates",
    "cos_min_ratio": "schedule.final",
}

#: Those of our values that are whole numbers.
COUNTS = ("schedule.warmup_steps", "training.max_updates")


class Conversion(NamedTuple):
    """A DeepSpeed JSON, converted.

    Attributes:
        fragment: What of it a run can use as it is, for ``--ds``.
        settings: What ``--set`` says of the rest: ``optimizer.beta1=0.9``.
        notes: What is left out or differs, and why, a line each.
    """

    fragment: dict[str, Any]
    settings: list[str]
    notes: list[str]


def convert(content: Mapping[str, Any]) -> Conversion:
    """Convert a DeepSpeed JSON, such as those in the documents of DeepSpeed and Hugging Face."""
    fragment = deepcopy(dict(content))
    settings: dict[str, Any] = {}
    notes: list[str] = []
    for key in [key for key in fragment if key in OWNED]:
        for name, value in _convert_owned(key, fragment.pop(key)):
            if name is None:
                notes.append(f"{key}: {value}")
            else:
                settings[name] = value
    notes += _rename(fragment)
    while problems := find_problems(fragment):
        for problem in problems:
            _remove(fragment, problem.path)
            notes.append(f"{'.'.join(problem.path)} is left out: {problem.reason}")
    notes += _resolve(fragment)
    if "stage" not in fragment.get("zero_optimization", {}):
        notes.append("it states no ZeRO stage: name one of zero0, zero1, zero2, zero3 beside it")
    if not any("enabled" in fragment.get(name, {}) for name in ("bf16", "fp16")):
        notes.append("it states no precision: name one of fp32, bf16, fp16 beside it")
    return Conversion(fragment, [f"{name}={_yaml(value)}" for name, value in settings.items()], notes)


Said = Iterator[tuple[str | None, Any]]


def _convert_owned(key: str, value: Any) -> Said:
    """What becomes of a key that the experiment decides: settings by name, and notes, which have no name."""
    is_count = isinstance(value, int) and not isinstance(value, bool)
    match key:
        case "optimizer":
            yield from _convert_optimizer(value)
        case "scheduler":
            yield from _convert_scheduler(value)
        case "gradient_clipping" if _is_number(value):
            yield "optimizer.clip_norm", float(value)
        case "gradient_clipping":
            yield None, f"{value!r}: the preset's optimizer.clip_norm applies; Hugging Face's Trainer would clip at 1.0"
        case "steps_per_print":
            if is_count and value > 0:
                yield "training.log_every", value
        case "train_batch_size" | "train_micro_batch_size_per_gpu":
            yield None, f"{value}: an update is measured in tokens (batch.src_tokens, batch.tgt_tokens), not in samples"
        case "gradient_accumulation_steps":
            number = value if is_count else "N"
            yield None, f"{value}: set batch.micro_batches to {number} times the number of processes"
        case _:
            yield None, "left out: the section checkpoint of the preset says when checkpoints are written"


def _convert_optimizer(section: Any) -> Said:
    kind, params = _parts(section)
    optimizer = next((name for name, ours in OPTIMIZERS.items() if kind.lower() in ours.deepspeed_types), None)
    if optimizer is None:
        yield None, f"{kind or 'it'} is left out: this trainer has {', '.join(OPTIMIZERS)}, with decoupled weight decay"
        return
    yield "optimizer.name", optimizer
    betas = params.get("betas")
    if isinstance(betas, list) and len(betas) == 2 and all(map(_is_number, betas)):
        yield from zip(("optimizer.beta1", "optimizer.beta2"), map(float, betas), strict=True)
    names = {"eps": "optimizer.eps", "weight_decay": "optimizer.weight_decay", **OPTIMIZERS[optimizer].deepspeed_values}
    yield from _convert_numbers(params, names)
    if params.get("adam_w_mode") is False and params.get("weight_decay"):
        yield None, "weight decay is decoupled here (AdamW), not added to the gradient"
    if ignored := sorted(params.keys() - names.keys() - {"betas", "adam_w_mode", "torch_adam"}):
        yield None, f"{', '.join(ignored)} left out"


def _convert_scheduler(section: Any) -> Said:
    kind, params = _parts(section)
    if kind not in WARMUP:
        yield None, f"{kind or 'it'} is left out: here the rate rises linearly, then falls as schedule.kind says"
        return
    if kind in ENDING:
        yield "schedule.kind", ENDING[kind]
    else:
        yield None, f"after its warm-up the rate falls with the inverse square root of the update, not as in {kind}"
    if _is_number(least := params.get("warmup_min_lr")) and least:
        yield None, "the warm-up starts at 0, not at warmup_min_lr"
    yield from _convert_numbers(params, SCHEDULE_VALUES)


def _convert_numbers(params: Mapping[str, Any], names: Mapping[str, str]) -> Said:
    """The settings that take the numbers of a section's parameters."""
    for name, ours in names.items():
        if _is_number(value := params.get(name)):
            yield ours, int(value) if ours in COUNTS else float(value)
    if automatic := sorted(name for name, value in params.items() if value == "auto"):
        yield None, f'{", ".join(automatic)} "auto": the preset\'s values apply'


def _parts(section: Any) -> tuple[str, dict[str, Any]]:
    """The type and the parameters of an optimizer or scheduler."""
    if not isinstance(section, Mapping):
        return "", {}
    params = section.get("params")
    return str(section.get("type", "")), dict(params) if isinstance(params, Mapping) else {}


def _rename(fragment: dict[str, Any]) -> Iterator[str]:
    """Give deprecated sections their current names."""
    for old_path, new_path in DEPRECATED_NAMES.items():
        section, _, old = old_path.rpartition(".")
        node, new = fragment.get(section) if section else fragment, new_path.rpartition(".")[2]
        if not isinstance(node, dict) or old not in node:
            continue
        value = node.pop(old)
        if new == "bf16":
            node.setdefault(new, value)
        elif value is True:
            node.setdefault(new, {"device": "cpu"})
        yield f"{old}: its name is {new} now"


def _resolve(fragment: dict[str, Any]) -> Iterator[str]:
    """Leave out what contradicts the rest, as :func:`dstransformer.config.compose` refuses it."""
    if all(fragment.get(name, {}).get("enabled") for name in ("bf16", "fp16")):
        del fragment["fp16"]
        yield "fp16 is left out: bf16 is enabled too, and its range needs no loss scale"
    zero = fragment.get("zero_optimization", {})
    for part, stage in OFFLOAD_STAGES.items():
        device = zero.get(part, {}).get("device", "none")
        if device == "nvme" or (device != "none" and zero.get("stage", stage) < stage):
            _remove(fragment, ("zero_optimization", part))
            reason = "checkpoints hold no files on NVMe" if device == "nvme" else f"it needs ZeRO stage {stage}"
            yield f"zero_optimization.{part} is left out: {reason}"


def _remove(fragment: dict[str, Any], path: tuple[str, ...]) -> None:
    """Remove a value, and the sections that are empty then."""
    *sections, key = path
    nodes = [fragment]
    for section in sections:
        nodes.append(nodes[-1][section])
    del nodes[-1][key]
    for node, section in zip(reversed(nodes[:-1]), reversed(sections), strict=True):
        if not node[section]:
            del node[section]


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _yaml(value: Any) -> str:
    """A number as ``--set`` reads it: YAML reads ``1e-09`` as text, and ``1.0e-09`` as a number."""
    if isinstance(value, str):
        return value
    text = repr(value)
    return text.replace("e", ".0e", 1) if "e" in text and "." not in text else text
