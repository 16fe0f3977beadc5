"""The keys that DeepSpeed 0.19 reads from its JSON. DeepSpeed silently ignores unknown keys; here they are errors.

The keys are listed here because importing DeepSpeed takes seconds. A test compares them with the installed package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FLAG, COUNT, NUMBER, ANY = "true or false", "a whole number, 0 or more", "a number, 0 or more", "any"
DTYPE = '"fp32", "fp16" or "bf16"'
SECTION = "an object, in braces"


def _keys(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


#: Top-level keys and the kind of value each takes.
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

#: Keys of the sections that determine how a run uses the hardware, and the kind of value each takes.
SECTION_KEYS: dict[str, dict[str, str]] = {
    "zero_optimization": {
        **_keys(FLAG, """
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
        **_keys(COUNT, """
            allgather_bucket_size max_live_parameters max_reuse_distance model_persistence_threshold
            module_granularity_threshold param_persistence_threshold prefetch_bucket_size reduce_bucket_size
            stage3_max_live_parameters stage3_max_reuse_distance stage3_model_persistence_threshold
            stage3_module_granularity_threshold stage3_param_persistence_threshold stage3_prefetch_bucket_size
            sub_group_size zero_hpz_partition_size
        """),
        **_keys(ANY, "leaf_module offload_optimizer offload_param overlap_comm stage zenflow"),
    },
    "zero_optimization.offload_optimizer": {
        **_keys(FLAG, "fast_init pin_memory pipeline_read pipeline_write super_offload"),
        **_keys(ANY, "buffer_count device nvme_path ratio cpuadam_cores_perc"),
    },
    "zero_optimization.offload_param": {
        "pin_memory": FLAG,
        **_keys(ANY, "buffer_count buffer_size device max_in_cpu nvme_path"),
    },
    "fp16": {
        **_keys(FLAG, "auto_cast consecutive_hysteresis enabled fp16_master_weights_and_grads"),
        **_keys(COUNT, "hysteresis initial_scale_power loss_scale_window min_loss_scale"),
        "loss_scale": NUMBER,
    },
    "bf16": _keys(
        FLAG, "bf16_master_weights_and_grads bf16_optimizer_states check_grad_overflow enabled immediate_grad_update"
    ),
}  # fmt: skip


def is_valid(kind: str, value: Any) -> bool:
    """Whether a value is of a kind: ``FLAG``, ``COUNT``, ``NUMBER``, ``DTYPE``, ``SECTION`` or ``ANY``."""
    if kind == FLAG:
        return isinstance(value, bool)
    if kind == SECTION:
        return isinstance(value, Mapping)
    if kind == DTYPE:
        return value is None or (isinstance(value, str) and value.lower() in ("fp32", "fp16", "bf16"))
    if kind == NUMBER:
        return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    if kind == COUNT:
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return is_whole and not isinstance(value, bool) and value >= 0
    return True
