"""A prediction of beam search: operators counted on the CPU, bytes and operations by formula."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.counts import VOCABULARY
from benchmarks.gpu.roofline import Operator, Prediction, Work, predict
from benchmarks.gpu.text import MEAN_PIECES
from dstransformer.config import Config, load_config
from dstransformer.corpus import EOS_ID
from dstransformer.decoding import Ensemble, beam_search
from dstransformer.model import Packing, Transformer
from dstransformer.training.devices import Sheet

#: Sizes of the model whose search is counted; the number of its layers is that of the preset.
_SMALL = ("model.d_model=32", "model.d_ff=64", "model.num_heads=2", "model.d_k=16", "model.d_v=16")

#: Bytes per logit: written, converted to fp32, read twice.
_LOGIT_BYTES = 16

#: Uses of the keys and values of earlier positions: read by attention; read and written when hypotheses change places.
_CACHE_USES = 3

#: Waits of a step: for the candidates.
_WAITS = 1


@dataclass(frozen=True)
class Search:
    """A predicted step of beam search, and the target tokens a second that follow."""

    model: str
    sentences: int
    work: Work
    time: Prediction

    @property
    def tokens_per_second(self) -> float:
        """Each step computes a token of each sentence."""
        return self.sentences / self.time.total


def predict_search(model: str, sheet: Sheet, batch_tokens: int) -> Search:
    """Predict a step in the middle of a search over batches of so many source tokens."""
    config = load_config(model)
    length = MEAN_PIECES + 1
    sentences = round(batch_tokens / length)
    hypotheses = sentences * config.decoding.beam_size
    weights = _decoder_weights(config)
    heads = config.model.num_heads * (config.model.d_k + config.model.d_v)
    earlier = hypotheses * length / 2 * heads * config.model.num_layers * 2 * _CACHE_USES
    memory = sentences * length * heads * config.model.num_layers * 2
    logits = hypotheses * VOCABULARY * _LOGIT_BYTES
    launches = count_step(model)
    operators = [
        Operator("products", "bfloat16", 1, 2 * weights, 2 * weights * hypotheses),
        Operator("caches and logits", "bfloat16", 1, round(earlier + memory + logits), 0),
    ]
    work = Work(operators, _WAITS, launches=launches)
    return Search(model, sentences, work, predict(work, sheet))


@cache
def count_step(model: str) -> int:
    """Operators of a step, counted in a small model of as many layers on the CPU, with the code paths of a GPU."""
    lengths = (10, 30)
    with mock.patch.dict(os.environ, DST_CPU_KERNELS="0"):
        few, many = (_count_search(model, length) for length in lengths)
    return round((many - few) / (lengths[1] - lengths[0]))  # the encoder and the first step cancel out


def _count_search(model: str, length: int) -> int:
    config = load_config(model, [*_SMALL, "decoding.max_extra_tokens=0"])
    torch.manual_seed(1)
    small = Transformer(config.model, 100).eval()
    packed = torch.tensor([*range(4, 3 + length), EOS_ID] * 4)
    packing = Packing.from_lengths([length] * 4)
    with _Counter() as counter:
        beam_search(Ensemble([small]), packed, packing, config.decoding, vocab_size=100)
    found: int = counter.operators
    return found


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators, without views and empty tensors, which start no kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self:
            parts = func.decompose(*args, **(kwargs or {}))  # inference mode leaves it whole
        if parts is not NotImplemented:
            return parts
        returns = func._schema.returns
        is_view = all(value.alias_info is not None and not value.alias_info.is_write for value in returns)
        self.operators += int(not is_view and "empty" not in func.__name__)
        return func(*args, **(kwargs or {}))


def _decoder_weights(config: Config) -> int:
    """Weights that a step multiplies with: those of the decoder, without the projections of the memory."""
    model = config.model
    keys, values = model.num_heads * model.d_k, model.num_heads * model.d_v
    layer = model.d_model * (2 * keys + values + values + keys + values + 2 * model.d_ff)
    return model.num_layers * layer + model.embedding_rows(VOCABULARY) * model.d_model
