"""Builds the optimizer: Adam (section 5.3) or Muon; and freezes parameters."""

from __future__ import annotations

import ctypes
import logging
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dstransformer.config.schema import OPTIMIZERS, OptimizerConfig
from dstransformer.distributed.world import World
from dstransformer.io.command import stopped_by_signals
from dstransformer.training.muon import Muon, hidden_matrices
from dstransformer.training.partition import Place

#: The learned positions of both sides, and the embedding of another source vocabulary.
_EMBEDDINGS = ("embedding", "src_embedding", "src_input", "tgt_input")


def build_optimizer(
    model: nn.Module,
    config: OptimizerConfig,
    dtype: torch.dtype,
    world: World,
    places: Callable[[], Mapping[str, Place]],
    *,
    offloaded: bool,
) -> torch.optim.Optimizer:
    """Build the optimizer that a configuration names, with learning rate 1, which the schedule scales.

    The products of the model are in ``dtype``, and the moments in CPU memory if ``offloaded``.

    Raises:
        Stopped: A signal came while an operator was compiled.
    """
    if config.name == "muon":
        # A CPU without instructions for half precision takes forty times as long in it as in fp32.
        return Muon(model, config, dtype if world.device.type == "cuda" else torch.float32, world, places)
    return build_adam(model.parameters(), config, offloaded=offloaded)


def moments_of(model: nn.Module, config: OptimizerConfig) -> dict[str, tuple[str, ...]]:
    """The names of the tensors that the optimizer keeps of each parameter, by its name."""
    optimizer, matrices = OPTIMIZERS[config.name], {matrix.name for matrix in hidden_matrices(model)}
    names = (name for name, _ in model.named_parameters())
    return {name: optimizer.matrix_moments if name in matrices else optimizer.moments for name in names}


def build_adam(
    parameters: Iterable[nn.Parameter], config: OptimizerConfig, *, offloaded: bool
) -> torch.optim.Optimizer:
    """Build Adam, or if moments are in CPU memory DeepSpeed's vectorised one.

    That is compiled at first use and needs a C++ compiler.
    """
    values: dict[str, Any] = {"lr": 1.0, "betas": (config.beta1, config.beta2), "eps": config.eps}
    if offloaded:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        with _prints_logged(), stopped_by_signals():  # there is nothing to save yet, and compilers take minutes
            adam: torch.optim.Optimizer = DeepSpeedCPUAdam(parameters, **values, weight_decay=config.weight_decay)
        return adam
    if config.weight_decay:
        return torch.optim.AdamW(parameters, **values, weight_decay=config.weight_decay, fused=True)
    return torch.optim.Adam(parameters, **values, fused=True)


@contextmanager
def _prints_logged() -> Iterator[None]:
    """Log what C++ code prints in the block with DeepSpeed's lines: standard output is for results."""
    flush = ctypes.CDLL(None).fflush
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        flush(None)
        stdout = os.dup(1)
        os.dup2(printed.fileno(), 1)
        try:
            yield
        finally:
            flush(None)
            os.dup2(stdout, 1)
            os.close(stdout)
            printed.seek(0)
            for line in printed:
                logging.getLogger("DeepSpeed").info(line.rstrip())


def is_frozen(name: str, parts: Collection[str]) -> bool:
    """Whether a parameter belongs to one of the parts: ``embedding``, ``softmax``, ``encoder``, ``decoder.0`` …"""
    top, _, rest = name.partition(".")
    if top in _EMBEDDINGS:
        return "embedding" in parts
    if top in ("softmax", "output_bias"):
        return "softmax" in parts
    side = top.removesuffix("_norm")
    return side in parts or f"{side}.{rest.partition('.')[0]}" in parts


def freeze(model: nn.Module, parts: Collection[str]) -> None:
    """Make the gradients of all parameters of ``training.freeze`` zero: Adam and Muon leave them as they are.

    Nothing else differs from other runs: moments, partitions and checkpoints have the same form at every ZeRO stage.
    """
    for name, parameter in model.named_parameters():
        if is_frozen(name, parts):
            parameter.register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]
