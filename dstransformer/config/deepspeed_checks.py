"""What is wrong with a DeepSpeed JSON, before DeepSpeed is imported: all problems together.

Keys that DeepSpeed 0.19 does not know it ignores at the top of the JSON; here they are errors. Inside the sections that
say how a run uses the hardware it refuses them itself, when a run starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from dstransformer.errors import ConfigError, shell_word, shown

#: DeepSpeed keys that are derived from the experiment, and what determines each of them.
OWNED = {
    "train_batch_size": "batch.micro_batches",
    "train_micro_batch_size_per_gpu": "batch.micro_batches",
    "gradient_accumulation_steps": "batch.micro_batches and the number of processes",
    "gradient_clipping": "optimizer.clip_norm",
    "optimizer": "the optimizer section",
    "scheduler": "the schedule section",
    "steps_per_print": "training.log_every",
    "checkpoint": "the checkpoint section",
}

#: Values this package itself reads from the JSON, and the JSON literals allowed for each.
ALLOWED_VALUES = {
    "zero_optimization.stage": ("0", "1", "2", "3"),
    "zero_optimization.offload_optimizer.device": ('"cpu"', '"nvme"', '"none"'),
    "zero_optimization.offload_param.device": ('"cpu"', '"nvme"', '"none"'),
    "bf16.enabled": ("true", "false"),
    "fp16.enabled": ("true", "false"),
}

#: Deprecated names that DeepSpeed still accepts, and the current names that are read here.
DEPRECATED_NAMES = {
    "bfloat16": "bf16",
    "zero_optimization.cpu_offload": "zero_optimization.offload_optimizer",
    "zero_optimization.cpu_offload_param": "zero_optimization.offload_param",
}

#: DeepSpeed's options for half precision. They have no effect: the model itself computes in it, on weights in fp32.
WITHOUT_EFFECT = (
    *(f"bf16.{name}" for name in ("bf16_master_weights_and_grads", "bf16_optimizer_states", "check_grad_overflow",
                                  "immediate_grad_update")),
    *(f"fp16.{name}" for name in ("auto_cast", "fp16_master_weights_and_grads")),
    "data_types", "torch_autocast", "amp",
)  # fmt: skip

_FINITE = "gradients that are not finite would be applied"
_ROUNDED = "updates would depend on the number of processes"
_MOMENTS = "checkpoints would lack the moments it keeps elsewhere"

#: Keys with one usable value, and what any other would do. DeepSpeed accepts the others, mostly without a warning.
FIXED_VALUES: dict[str, tuple[Any, str]] = {
    "gradient_allreduce_op": ("mean", "the gradient would not be that of the mean loss"),
    "managed_gradient_accumulation": (True, "every micro-batch would be an update"),
    "zero_optimization.compute_grad_norm": (True, _FINITE),
    "zero_optimization.offload_optimizer.ratio": (1, _MOMENTS),
    "zero_optimization.offload_optimizer.super_offload": (False, _MOMENTS),
    "zero_optimization.round_robin_gradients": (False, "DeepSpeed 0.19 confuses parameters, so would checkpoints"),
    "zero_optimization.zenflow": (None, "updates would use gradients of earlier ones"),
    "zero_optimization.zero_quantized_gradients": (False, _ROUNDED),
    "zero_optimization.zero_quantized_nontrainable_weights": (False, _ROUNDED),
    "zero_optimization.zero_quantized_weights": (False, _ROUNDED),
}

#: Sections of DeepSpeed that this trainer does not support, and why. One that says ``"enabled": false`` is harmless.
UNSUPPORTED = {
    "activation_checkpointing": "it has no effect on this model; use --set training.activation_checkpointing=true",
    "compression_training": "the bundle would not be the model that was trained",
    "curriculum_learning": "the plan decides which sentences an update holds",
    "data_efficiency": "the plan decides which sentences an update holds",
    "elasticity": "DeepSpeed 0.19 has no elastic agent; a run resumes on any number of processes without it",
    "hybrid_engine": "it is for generation during training",
    "progressive_layer_drop": "it has no effect on this model",
    "quantize_training": "the bundle would not be the model that was trained",
    "seq_parallel_communication_data_type": "this model has no sequence parallelism",
    "tensor_parallel": "it has no effect on this model",
    "weight_quantization": "the bundle would not be the model that was trained",
}

FLAG, SECTION, DTYPE, ANY = "true or false", "an object, in braces", '"fp32", "fp16" or "bf16"', "any"


def _keys(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


#: The keys that DeepSpeed reads at the top, and the kind of value each takes. A test compares them with the installed
#: package, whose import takes seconds.
TOP_LEVEL_KEYS = {
    **_keys(FLAG, """
        dataloader_drop_last disable_allgather disable_python_gc dump_state memory_breakdown prescale_gradients
        use_data_before_expert_parallelism wall_clock_breakdown zero_allow_untested_optimizer
        zero_force_ds_cpu_optimizer
    """),
    **_keys(DTYPE, "communication_data_type seq_parallel_communication_data_type"),
    **_keys(SECTION, """
        activation_checkpointing aio amp autotuning bf16 bfloat16 checkpoint comet comms_logger compile
        compression_training csv_monitor curriculum_learning data_efficiency data_types datastates_ckpt eigenvalue
        elasticity expert_parallel flops_profiler fp16 hybrid_engine nebula optimizer progressive_layer_drop
        quantize_training scheduler tensor_parallel tensorboard timers torch_autocast wandb weight_quantization
        zero_optimization
    """),
    **_keys(ANY, """
        gradient_accumulation_steps gradient_allreduce_op gradient_clipping gradient_predivide_factor
        graph_harvesting log_level managed_gradient_accumulation pipeline sparse_attention sparse_gradients
        steps_per_print train_batch_size train_micro_batch_size_per_gpu vocabulary_size
    """),
}  # fmt: skip

#: Problems that one message names.
_MAX_NAMED = 8


class Problem(NamedTuple):
    """Something in a DeepSpeed JSON that cannot be used.

    Attributes:
        path: The keys that lead to it.
        text: What is wrong, and what to do; it continues a sentence that begins with the name of the file.
        reason: What is wrong, in short.
    """

    path: tuple[str, ...]
    text: str
    reason: str


def check_fragment(fragment: Mapping[str, Any], origin: str) -> None:
    """Refuse a fragment, which messages call ``origin``, that cannot be used as it is.

    Raises:
        ConfigError: It states something that cannot be used; the message has all of it.
    """
    problems = find_problems(fragment)
    if len(problems) == 1:
        raise ConfigError(f"{origin}{problems[0].text}")
    if problems:
        named = ", ".join(f"{'.'.join(problem.path)} ({problem.reason})" for problem in problems[:_MAX_NAMED])
        more = f" and {len(problems) - _MAX_NAMED} more" if len(problems) > _MAX_NAMED else ""
        raise ConfigError(
            f"{origin} has {len(problems)} entries that cannot be used as they are: {named}{more}; "
            f"`dst ds-config --from {shell_word(origin)}` converts the file and says what becomes of each"
        )


def find_problems(fragment: Mapping[str, Any]) -> list[Problem]:
    """All that cannot be used in a fragment, at most one problem for each key."""
    problems: dict[tuple[str, ...], Problem] = {}
    for problem in (*_iter_bad_literals(fragment), *_iter_bad_values(fragment), *_iter_bad_keys(fragment)):
        if not any(problem.path[: len(path)] == path for path in problems):
            problems[problem.path] = problem
    return list(problems.values())


def iter_values(tree: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All values of a JSON object that are no objects themselves, after the keys that lead to them."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from iter_values(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def _iter_bad_literals(fragment: Mapping[str, Any]) -> Iterator[Problem]:
    """Values that this package itself reads, and sections of them that are no objects."""
    for name, allowed in ALLOWED_VALUES.items():
        path = tuple(name.split("."))
        node: Any = fragment
        for depth, section in enumerate(path[:-1], start=1):
            node = node.get(section, {})
            if not isinstance(node, dict):
                where, example = ".".join(path[:depth]), f'{{"{path[-1]}": {allowed[0]}}}'
                text = f": {where} is {json.dumps(node)}: write an object, such as {example}"
                yield Problem(path[:depth], text, "not an object")
                node = {}
        if path[-1] in node and json.dumps(node[path[-1]]) not in allowed:
            written = json.dumps(node[path[-1]])
            yield Problem(path, f": {name} is {written}: write one of {', '.join(allowed)}", written)


def _iter_bad_values(fragment: Mapping[str, Any]) -> Iterator[Problem]:
    """Values that DeepSpeed would take; the first problem of each counts."""
    for path, value in iter_values(fragment):
        name, top = ".".join(path), path[0]
        section = fragment[top]
        if top in OWNED:
            yield Problem(
                (top,),
                f" states {top!r}, which is derived from {OWNED[top]} of the experiment: remove it from the JSON and "
                "set it with a preset or --set",
                "derived from the experiment",
            )
        elif top in UNSUPPORTED and not (isinstance(section, Mapping) and section.get("enabled") is False):
            yield Problem((top,), f" states {top!r}: {UNSUPPORTED[top]}; remove it", UNSUPPORTED[top])
        elif top in WITHOUT_EFFECT or name in WITHOUT_EFFECT:
            yield Problem(
                path,
                f" states {name!r}, which has no effect: weights, gradients and moments are in fp32, and every "
                "gradient is checked; remove it, and choose what the model computes in with one of fp32, bf16, fp16",
                "no effect here",
            )
        for fixed, (usable, effect) in FIXED_VALUES.items():
            if f"{name}.".startswith(f"{fixed}.") and (name != fixed or value != usable):
                text = f" sets {name} to {shown(json.dumps(value), quote=False)}: {effect}; remove it"
                yield Problem(path, text, effect)
        for old, new in DEPRECATED_NAMES.items():
            if f"{name}.".startswith(f"{old}."):
                text = f" states {old!r}, a deprecated name: write {new!r}"
                yield Problem(tuple(old.split(".")), text, f"its name is {new} now")
        if value == "auto":
            yield Problem(path, f': {name} is "auto", which DeepSpeed replaces silently: write a value', '"auto"')


def _iter_bad_keys(fragment: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys that DeepSpeed does not know, which it would ignore, and values of the wrong type."""
    for name, value in fragment.items():
        if name not in TOP_LEVEL_KEYS:
            near = get_close_matches(name, list(TOP_LEVEL_KEYS), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "remove it"
            yield Problem((name,), f" states {shown(name)}, which DeepSpeed does not know: {hint}", "unknown")
        elif not _is_valid(kind := TOP_LEVEL_KEYS[name], value):
            written = shown(json.dumps(value), quote=False)
            yield Problem((name,), f": {name} is {written}: write {kind}", f"{written}, not {kind}")


def _is_valid(kind: str, value: Any) -> bool:
    if kind == FLAG:
        return isinstance(value, bool)
    if kind == SECTION:
        return isinstance(value, Mapping)
    return kind == ANY or value is None or str(value).lower() in ("fp32", "fp16", "bf16")
