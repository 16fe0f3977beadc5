"""Adam (section 5.3), in the implementation that fits where its states live."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from dstransformer.config import OptimizerConfig


def build_optimizer(
    parameters: Iterable[nn.Parameter], config: OptimizerConfig, *, offloaded: bool
) -> torch.optim.Optimizer:
    """Adam with rate 1, for the schedule to multiply.

    Args:
        parameters: Of the model.
        config: Its moments, epsilon and decoupled weight decay.
        offloaded: DeepSpeed keeps the states in CPU memory, where its own vectorised Adam updates them; that one is
            compiled at first use and needs a C++ compiler.
    """
    betas = (config.beta1, config.beta2)
    if offloaded:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        offloaded_adam: torch.optim.Optimizer = DeepSpeedCPUAdam(
            parameters, lr=1.0, betas=betas, eps=config.eps, weight_decay=config.weight_decay, adamw_mode=True
        )
        return offloaded_adam
    if config.weight_decay:
        return torch.optim.AdamW(
            parameters, lr=1.0, betas=betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
        )
    return torch.optim.Adam(parameters, lr=1.0, betas=betas, eps=config.eps, fused=True)
