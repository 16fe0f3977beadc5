"""Sampling: outputs drawn from the model's distribution instead of searched for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dstransformer.config import DecodingConfig
from dstransformer.data import BOS_ID, EOS_ID
from dstransformer.data.packing import Packing
from dstransformer.decoding.beam import FIRST_PIECE, Hypothesis, length_penalty, output_limits
from dstransformer.decoding.devices import without_cudnn_attention
from dstransformer.decoding.formats import Sampling
from dstransformer.model import Ensemble
from dstransformer.model.loss import CHUNK_LOGITS


@torch.inference_mode()
@without_cudnn_attention()
def sample(
    model: Ensemble,
    src: Tensor,
    packing: Packing,
    sampling: Sampling,
    *,
    vocab_size: int,
    count: int,
    numbers: Sequence[int],
    settings: DecodingConfig,
    prefixes: Sequence[Sequence[int]] = (),
) -> list[list[Hypothesis]]:
    """Draw ``count`` outputs for each sentence.

    The random number of a token is a function of the seed, the number of the sentence, the number of the output and
    the position, so an output does not depend on the batch.

    Args:
        model: The models.
        src: Source tokens, each sentence with its end, ``(src_tokens,)``.
        packing: The sentences of ``src``.
        sampling: How tokens are drawn.
        vocab_size: Number of pieces of the tokenizer.
        count: Outputs per sentence.
        numbers: The number of each sentence in the whole text.
        settings: The length penalty of the score, and the limits of an output; at its limit it can only end.
        prefixes: For each sentence the tokens that its outputs begin with; none if empty.

    Returns:
        The outputs of each sentence in the order in which they were drawn; none if the model computes NaN. The
        log-probability is the model's own, at temperature 1 and without truncation.
    """
    decoder = model.start(src, packing, count)
    limits, device = output_limits(packing, settings, max_positions=model.max_positions, prefixes=prefixes), src.device
    drawn = _Drawn(len(limits), count, max(limits))
    live = np.arange(len(limits))  # sentences with an unfinished output
    tokens = torch.full((len(limits) * count,), BOS_ID, device=device)
    rows = torch.arange(len(limits), device=device).repeat_interleave(count)
    for position in range(max(limits)):
        logits = decoder.step(tokens, rows).float()
        uniform = uniform_numbers(sampling.seed, np.asarray(numbers)[live], count, position)
        first = FIRST_PIECE if position >= settings.min_tokens else FIRST_PIECE + 1
        chosen = draw_tokens(logits[:, first:vocab_size], sampling, torch.from_numpy(uniform).to(device)) + first
        chosen = chosen.view(-1, count).cpu()
        for index, sentence in enumerate(live.tolist()):
            if prefixes and position < len(prefixes[sentence]):
                chosen[index] = prefixes[sentence][position]
            elif position + 1 >= limits[sentence]:
                chosen[index] = EOS_ID
        log_probability = logits.log_softmax(dim=-1).gather(1, chosen.to(device).view(-1, 1)).view(-1, count)
        unfinished = drawn.add(live, position, chosen.numpy(), log_probability.double().cpu().numpy())
        kept = unfinished.nonzero()[0]
        if not kept.size:
            break
        live = live[kept]
        tokens = chosen[torch.from_numpy(kept)].flatten().to(device)
        rows = (torch.from_numpy(kept)[:, None] * count + torch.arange(count)).flatten().to(device)
    return [drawn.hypotheses(sentence, settings) for sentence in range(len(limits))]


class _Drawn:
    """The outputs so far: tokens, after the end filled with ends, and log-probabilities."""

    def __init__(self, sentences: int, count: int, max_tokens: int) -> None:
        self._tokens = np.full((sentences, count, max_tokens), EOS_ID)
        self._log_probability = np.zeros((sentences, count))
        self._finished = np.zeros((sentences, count), dtype=bool)

    def add(
        self, live: npt.NDArray[np.int64], position: int, tokens: npt.NDArray[np.int64], values: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.bool_]:
        """Add a token to the unfinished outputs of these sentences; returns which sentences have another."""
        unfinished = ~self._finished[live]
        self._tokens[live, :, position] = np.where(unfinished, tokens, EOS_ID)
        self._log_probability[live] += np.where(unfinished, values, 0.0)
        self._finished[live] |= tokens == EOS_ID
        left: npt.NDArray[np.bool_] = ~np.all(self._finished[live], axis=1)
        return left

    def hypotheses(self, sentence: int, settings: DecodingConfig) -> list[Hypothesis]:
        hypotheses = []
        for row, value in zip(self._tokens[sentence].tolist(), self._log_probability[sentence].tolist(), strict=True):
            if math.isnan(value):
                return []
            tokens = row[: row.index(EOS_ID)]
            penalty = length_penalty(len(tokens) + 1, settings.length_penalty, settings.length_offset)
            hypotheses.append(Hypothesis(tokens, value / penalty, value))
        return hypotheses


def draw_tokens(logits: Tensor, sampling: Sampling, uniform: Tensor) -> Tensor:
    """Draw a piece for each row, in chunks of rows that take about the memory of ``CHUNK_LOGITS``.

    Args:
        logits: ``(rows, pieces)`` fp32.
        sampling: Temperature and truncation.
        uniform: A number in ``[0, 1)`` for each row, ``(rows,)`` fp64: which piece is drawn.

    Returns:
        ``(rows,)`` int64: the piece whose share of the sum of probabilities holds ``uniform``. With truncation the
        pieces are sorted by probability, without it they are in their own order.
    """
    rows = max(64, CHUNK_LOGITS[logits.device.type] // (8 * logits.shape[1]))  # eight tensors as large are alive
    chunks = zip(torch.split(logits, rows), torch.split(uniform, rows), strict=True)
    return torch.cat([_draw_chunk(*chunk, sampling) for chunk in chunks])


def _draw_chunk(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    logits = logits / sampling.temperature
    if not sampling.top_k and sampling.top_p == 1:
        reached = logits.double().softmax(dim=-1).cumsum(dim=-1)
        drawn = torch.searchsorted(reached, uniform[:, None] * reached[:, -1:], right=True)
        return drawn.squeeze(1).clamp(max=logits.shape[1] - 1)
    count = min(sampling.top_k or logits.shape[1], logits.shape[1])
    best, pieces = logits.topk(count)
    probability = best.double().softmax(dim=-1)
    before = probability.cumsum(dim=-1) - probability
    probability = probability.masked_fill(before >= sampling.top_p, 0.0)
    reached = probability.cumsum(dim=-1)
    drawn = (reached <= uniform[:, None] * reached[:, -1:]).sum(dim=-1).clamp(max=count - 1)
    return pieces.gather(1, drawn[:, None]).squeeze(1)


def uniform_numbers(seed: int, sentences: npt.NDArray[np.int64], count: int, position: int) -> npt.NDArray[np.float64]:
    """A random number in ``[0, 1)`` for each output of each sentence at a position, ``(sentences * count,)``.

    Each is a hash of its four numbers (SplitMix64; Steele et al., 2014), so it does not depend on the others.
    """
    outputs = np.arange(count, dtype=np.uint64)
    mixed = _mix(np.uint64(seed) + _mix(sentences.astype(np.uint64)))[:, None]
    mixed = _mix(_mix(mixed + outputs) + np.uint64(position))
    return (mixed >> np.uint64(11)).astype(np.float64).ravel() * 2.0**-53


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """One step of SplitMix64."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))
