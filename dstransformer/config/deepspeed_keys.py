"""The names that DeepSpeed 0.19 reads in its JSON. It passes silently over what it does not know, so we do not.

Written down, as importing DeepSpeed takes seconds; a test compares them with the installed package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from dstransformer.errors import ConfigError, shown

FLAG, COUNT, ANY = "true or false", "a whole number, 0 or more", "any"
DTYPE = '"fp32", "fp16" or "bf16"'


def _each(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


#: At the top.
TOP = {
    **_each(FLAG, """
        dataloader_drop_last disable_allgather disable_python_gc dump_state memory_breakdown prescale_gradients
        use_data_before_expert_parallelism wall_clock_breakdown zero_allow_untested_optimizer
        zero_force_ds_cpu_optimizer
    """),
    **_each(DTYPE, "communication_data_type seq_parallel_communication_data_type"),
    **_each(ANY, """
        activation_checkpointing aio amp autotuning bf16 bfloat16 checkpoint comet comms_logger compile
        compression_training csv_monitor curriculum_learning data_efficiency data_types datastates_ckpt eigenvalue
        elasticity expert_parallel flops_profiler fp16 gradient_accumulation_steps gradient_allreduce_op
        gradient_clipping gradient_predivide_factor graph_harvesting hybrid_engine log_level
        managed_gradient_accumulation nebula optimizer pipeline progressive_layer_drop quantize_training scheduler
        sparse_attention sparse_gradients steps_per_print tensor_parallel tensorboard timers torch_autocast
        train_batch_size train_micro_batch_size_per_gpu vocabulary_size wandb weight_quantization zero_optimization
    """),
}  # fmt: skip

#: Keys of the sections that decide how a run uses the hardware, by what may stand there.
SECTIONS: dict[str, dict[str, str]] = {
    "zero_optimization": {
        **_each(FLAG, """
            allgather_partitions allgather_sequential compute_grad_norm contiguous_gradients cpu_offload
            cpu_offload_param cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks
            gather_16bit_weights_on_model_save ignore_unused_parameters legacy_stage1 load_from_fp32_weights
            log_trace_cache_warnings memory_efficient_linear override_module_apply parameter_alignment
            pipeline_loading_checkpoint reduce_scatter round_robin_gradients save_muon_momentum_buffer_in_memory
            stage3_allgather_sequential stage3_gather_16bit_weights_on_model_save
            stage3_gather_fp16_weights_on_model_save stage3_use_all_reduce_for_fetch_params
            use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce zero_quantized_gradients
            zero_quantized_nontrainable_weights zero_quantized_weights
        """),
        **_each(COUNT, """
            allgather_bucket_size max_live_parameters max_reuse_distance model_persistence_threshold
            module_granularity_threshold param_persistence_threshold prefetch_bucket_size reduce_bucket_size
            stage3_max_live_parameters stage3_max_reuse_distance stage3_model_persistence_threshold
            stage3_module_granularity_threshold stage3_param_persistence_threshold stage3_prefetch_bucket_size
            sub_group_size zero_hpz_partition_size
        """),
        **_each(ANY, "leaf_module offload_optimizer offload_param overlap_comm stage zenflow"),
    },
    "zero_optimization.offload_optimizer": {
        **_each(FLAG, "fast_init pin_memory pipeline_read pipeline_write super_offload"),
        **_each(ANY, "buffer_count device nvme_path ratio cpuadam_cores_perc"),
    },
    "zero_optimization.offload_param": {
        "pin_memory": FLAG,
        **_each(ANY, "buffer_count buffer_size device max_in_cpu nvme_path"),
    },
    "fp16": {
        **_each(FLAG, "auto_cast consecutive_hysteresis enabled fp16_master_weights_and_grads"),
        **_each(COUNT, "hysteresis initial_scale_power loss_scale_window"),
        **_each(ANY, "loss_scale min_loss_scale"),
    },
    "bf16": _each(
        FLAG, "bf16_master_weights_and_grads bf16_optimizer_states check_grad_overflow enabled immediate_grad_update"
    ),
}  # fmt: skip


def check_keys(fragment: Mapping[str, Any], origin: str) -> None:
    """Refuse a name or a value that DeepSpeed has no use for.

    Raises:
        ConfigError: The first one.
    """
    for name, value in fragment.items():
        _check_entry(name, value, TOP, origin, "")
    for section, known in SECTIONS.items():
        node: Any = fragment
        for part in section.split("."):
            node = node.get(part, {}) if isinstance(node, Mapping) else {}
        for name, value in node.items() if isinstance(node, Mapping) else ():
            _check_entry(name, value, known, origin, f"{section}.")


def _check_entry(name: str, value: Any, known: Mapping[str, str], origin: str, prefix: str) -> None:
    if name not in known:
        near = get_close_matches(name, list(known), n=1)
        hint = f"did you mean {prefix + near[0]!r}?" if near else "remove it"
        raise ConfigError(f"{origin} states {shown(prefix + name)}, which DeepSpeed does not know: {hint}")
    if not _is(known[name], value):
        raise ConfigError(f"{origin}: {prefix}{name} is {shown(json.dumps(value), quote=False)}: write {known[name]}")


def _is(kind: str, value: Any) -> bool:
    if kind == FLAG:
        return isinstance(value, bool)
    if kind == DTYPE:
        return value is None or (isinstance(value, str) and value.lower() in ("fp32", "fp16", "bf16"))
    if kind == COUNT:
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return whole and not isinstance(value, bool) and value >= 0
    return True
