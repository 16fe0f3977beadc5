"""The Transformer on packed batches, its loss, its incremental decoder, and bundles of trained weights."""

from dstransformer.model.attention_weights import AttentionWeights, attention_weights
from dstransformer.model.bundle import Bundle, open_bundle, save_bundle, save_weights
from dstransformer.model.cost import (
    activation_bytes,
    loss_bytes,
    parameter_count,
    recomputed_bytes,
    training_flops,
    uses_varlen,
)
from dstransformer.model.incremental import Ensemble, IncrementalDecoder
from dstransformer.model.loss import LossSums
from dstransformer.model.ops import DTYPES, Backend, RoundedWeights, check_backend
from dstransformer.model.transformer import Transformer

__all__ = [
    "DTYPES",
    "AttentionWeights",
    "Backend",
    "Bundle",
    "Ensemble",
    "IncrementalDecoder",
    "LossSums",
    "RoundedWeights",
    "Transformer",
    "activation_bytes",
    "attention_weights",
    "check_backend",
    "loss_bytes",
    "open_bundle",
    "parameter_count",
    "recomputed_bytes",
    "save_bundle",
    "save_weights",
    "training_flops",
    "uses_varlen",
]
