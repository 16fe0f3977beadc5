"""Adam and its learning-rate schedule (section 5.3)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from dstransformer.config import OptimizerConfig, ScheduleConfig
from dstransformer.terminal.command import stopped_by_signals


def learning_rate(step: int, d_model: int, schedule: ScheduleConfig) -> float:
    """``scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)`` (equation 3) for update ``step``, from 1.

    With ``schedule.peak`` the same curve, with that value at the end of the warm-up whatever ``d_model`` is.
    """
    height = schedule.scale * d_model**-0.5 if schedule.peak is None else schedule.peak * schedule.warmup_steps**0.5
    return float(height * min(step**-0.5, step * schedule.warmup_steps**-1.5))


def build_optimizer(
    parameters: Iterable[nn.Parameter], config: OptimizerConfig, *, offloaded: bool
) -> torch.optim.Optimizer:
    """Build Adam with learning rate 1, which the schedule scales.

    Args:
        parameters: The parameters of the model.
        config: The betas, epsilon and decoupled weight decay.
        offloaded: Use DeepSpeed's vectorised Adam for optimizer states in CPU memory. It is compiled at first use and
            needs a C++ compiler.

    Raises:
        Stopped: A signal came while it was compiled.
    """
    betas = (config.beta1, config.beta2)
    if offloaded:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        with stopped_by_signals():  # there is nothing to save yet, and compilers take minutes
            offloaded_adam: torch.optim.Optimizer = DeepSpeedCPUAdam(
                parameters, lr=1.0, betas=betas, eps=config.eps, weight_decay=config.weight_decay, adamw_mode=True
            )
        return offloaded_adam
    if config.weight_decay:
        return torch.optim.AdamW(
            parameters, lr=1.0, betas=betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
        )
    return torch.optim.Adam(parameters, lr=1.0, betas=betas, eps=config.eps, fused=True)
