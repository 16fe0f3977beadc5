"""The Transformer on packed batches, its loss, its incremental decoder, and bundles of trained weights.

Opening a bundle needs no torch; the other names load it at first use.
"""

from typing import TYPE_CHECKING

from dstransformer.io.lazy import loads_later
from dstransformer.model.bundle import Bundle, open_bundle, save_bundle, save_weights

if TYPE_CHECKING:
    from dstransformer.model.attention_weights import attention_weights
    from dstransformer.model.cost import parameter_count, training_flops
    from dstransformer.model.incremental import Ensemble
    from dstransformer.model.ops import DTYPES
    from dstransformer.model.transformer import Transformer
else:
    __getattr__ = loads_later(__name__, "attention_weights", "cost", "incremental", "loss", "ops", "transformer")

__all__ = [
    "DTYPES",
    "Bundle",
    "Ensemble",
    "Transformer",
    "attention_weights",
    "open_bundle",
    "parameter_count",
    "save_bundle",
    "save_weights",
    "training_flops",
]
