"""Kernels for a CPU, most in C++; what they compute is defined by the PyTorch code that stands beside them."""

from dstransformer.model.cpu.functions import (
    LANES,
    HeadShape,
    attend_memory,
    attend_path,
    best_pieces,
    can_compute,
    cross_entropy_,
    linear,
    multiply,
    pack_linear,
    packed_attention,
    residual_norm,
    weight_gradient,
)
from dstransformer.model.cpu.library import kernels_name, processor_name

__all__ = [
    "LANES",
    "HeadShape",
    "attend_memory",
    "attend_path",
    "best_pieces",
    "can_compute",
    "cross_entropy_",
    "kernels_name",
    "linear",
    "multiply",
    "pack_linear",
    "packed_attention",
    "processor_name",
    "residual_norm",
    "weight_gradient",
]
