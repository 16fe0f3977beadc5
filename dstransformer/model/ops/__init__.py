"""The operations of the model, the only way in which layers compute; no layer knows which implementation runs.

- ``reference``: each operation in plain PyTorch. This defines the result.
- ``rounding``: weights in the precision of the computation, and of 8 bits.
- ``dispatch``: chooses the implementation of each operation, and has PyTorch compile the reference for a GPU.
- ``cpu``: oneDNN, and the compiled CPU kernels of ``library``.
- ``varlen``: PyTorch's variable-length attention on a GPU.
- ``caches``: keys and values of a decoder that computes one position at a time.
"""

from dstransformer.model.ops.dispatch import (
    attention,
    best_pieces,
    build_caches,
    compiler_name,
    cross_entropy,
    linear,
    prepare_linear,
    r_drop_cross_entropy,
    residual_norm,
    weight_gradient,
)
from dstransformer.model.ops.library import (
    DTYPES,
    kernels_fingerprint,
    precision_name,
    processor_flags,
    processor_name,
)
from dstransformer.model.ops.reference import HeadShape, dropout
from dstransformer.model.ops.rounding import RoundedWeights, int8_values, rounded, through_int8
from dstransformer.model.ops.varlen import Backend, check_backend

__all__ = [
    "DTYPES",
    "Backend",
    "HeadShape",
    "RoundedWeights",
    "attention",
    "best_pieces",
    "build_caches",
    "check_backend",
    "compiler_name",
    "cross_entropy",
    "dropout",
    "int8_values",
    "kernels_fingerprint",
    "linear",
    "precision_name",
    "prepare_linear",
    "processor_flags",
    "processor_name",
    "r_drop_cross_entropy",
    "residual_norm",
    "rounded",
    "through_int8",
    "weight_gradient",
]
