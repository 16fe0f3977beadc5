"""Several models that decode as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from dstransformer.data.packing import Packing
from dstransformer.errors import DataError
from dstransformer.model import IncrementalDecoder, Transformer


class Decoder(Protocol):
    """Computes the logits of one position after another; see :class:`dstransformer.model.IncrementalDecoder`.

    Attributes:
        ragged: A sentence may have any number of rows. Otherwise it has ``beam_size`` from the first step on.
    """

    ragged: bool

    def step(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """Continue rows with one token each: ``(new_rows,)`` twice to logits ``(new_rows, pieces)``."""


class Ensemble(nn.Module):
    """Models with one vocabulary. The probability of a token is the mean of theirs.

    Args:
        models: At least one, all on one device and in one precision.
    """

    def __init__(self, models: Sequence[Transformer]) -> None:
        super().__init__()
        self.members: Sequence[Transformer] = nn.ModuleList(models)  # type: ignore[assignment]

    @property
    def device(self) -> torch.device:
        """The device of all models."""
        return self.members[0].softmax_weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of all models."""
        return self.members[0].softmax_weight.dtype

    @property
    def max_positions(self) -> int | None:
        """The fewest positions that one of the models has learned; None if all have sinusoids."""
        learned = [model.config.max_positions for model in self.members if model.config.positions == "learned"]
        return min(learned, default=None)

    @property
    def bytes_per_token(self) -> int:
        """Memory that a token of a hypothesis takes in the caches of all models."""
        shapes = [model.config for model in self.members]
        values = sum(shape.decoder_depth * shape.num_heads * (2 * shape.d_k + shape.d_v) for shape in shapes)
        return values * self.members[0].softmax_weight.element_size()

    def start(self, src: Tensor, packing: Packing, beam_size: int) -> Decoder:
        """Encode sentences and start decoding them; see :class:`dstransformer.model.IncrementalDecoder`."""
        decoders = [IncrementalDecoder(model, src, packing, beam_size) for model in self.members]
        return decoders[0] if len(decoders) == 1 else _MeanDecoder(decoders)


class _MeanDecoder:
    """Averages the probabilities of several decoders (logits are then log-probabilities)."""

    def __init__(self, decoders: Sequence[IncrementalDecoder]) -> None:
        self._decoders = decoders
        self.ragged = all(decoder.ragged for decoder in decoders)

    def step(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """See :class:`Decoder`. Models with more filler rows in the embedding than others lose them."""
        parts = [decoder.step(tokens, rows).float().log_softmax(dim=-1) for decoder in self._decoders]
        pieces = min(part.shape[1] for part in parts)
        return torch.stack([part[:, :pieces] for part in parts]).logsumexp(dim=0) - math.log(len(parts))


def check_vocabularies(hashes: Sequence[tuple[str, str]]) -> None:
    """Check that the tokenizers of several bundles are one.

    Args:
        hashes: For each bundle its name and the SHA-256 of its tokenizer.

    Raises:
        DataError: A tokenizer differs from the first.
    """
    (first, expected), *others = hashes
    for name, found in others:
        if found != expected:
            raise DataError(
                f"{name} has another tokenizer than {first} ({found[:12]} and {expected[:12]}): models decode "
                "together only with one vocabulary; train them on corpora with the same tokenizer"
            )
