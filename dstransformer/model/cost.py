"""What a model costs: its weights, and the operations of an update.

Both follow from the architecture and the lengths of sentences; no model with values is built. Tests compare them with
real models and updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dstransformer.config import ModelConfig
from dstransformer.data.plan import LengthSums
from dstransformer.model.transformer import Transformer


@contextmanager
def meta_device() -> Iterator[None]:
    """Models built in this context have parameters with names and shapes, but without values and memory."""
    with torch.device("meta"), _SkipInitialisation():
        yield


class _SkipInitialisation(TorchFunctionMode):
    """Skips random initialisation.

    On the meta device it has no effect, but PyTorch imports its compiler to find that out, which takes seconds.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function unless it draws initial values."""
        given = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return given["tensor"]
        return args[0] if func in (Tensor.uniform_, Tensor.normal_) else func(*args, **given)


@cache
def _shapes(config: ModelConfig, vocab_size: int, src_vocab_size: int | None = None) -> Transformer:
    with meta_device():
        return Transformer(config, vocab_size, src_vocab_size=src_vocab_size)


def parameter_count(config: ModelConfig, vocab_size: int, src_vocab_size: int | None = None) -> int:
    """Number of weights of a model, counted without building them; for the sizes see :class:`Transformer`."""
    return sum(parameter.numel() for parameter in _shapes(config, vocab_size, src_vocab_size).parameters())


def training_flops(config: ModelConfig, rows: int, sums: LengthSums) -> int:
    """Operations of forward and backward pass: two for each multiply-add of a matrix product on real tokens.

    Counted are the projections and feed-forward networks of all layers, the two products of each attention (section
    3.2) for the pairs of query and key that see each other, and the product before the softmax. The causal mask hides
    half of the decoder's self-attention, and that half is not counted. Nor are padding, embedding look-ups, norms,
    softmax, activations, dropout, what a program recomputes to save memory, and the optimizer: they are work of an
    implementation, or negligible next to the products. In the backward pass a product has two gradients, each a
    product of the same size.

    Args:
        config: The architecture.
        rows: Rows of the softmax matrix, ``config.embedding_rows(vocab_size)``.
        sums: The sentence pairs.
    """
    return 3 * 2 * _shapes(config, rows).multiply_adds(sums)
