"""Which words of a sentence a translation attends to, for the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dstransformer.corpus import BOS_ID, EOS_ID, Tokenizer
from dstransformer.decoding import Translator
from dstransformer.errors import DataError
from dstransformer.model import attention_weights

_SPACE = "▁"


def word_attention(translator: Translator, source: str, target: str) -> dict[str, Any]:
    """How much each word of a translation attends to each word of its sentence.

    The weights are those of the encoder-decoder attention, averaged over layers and heads. A word receives what its
    pieces receive together, and attends as its pieces do on average. What is missing from 1 goes to the end of the
    sentence.

    Returns:
        ``source`` and ``target``, the words, and ``weights``, a row for each target word.

    Raises:
        DataError: A weight is NaN.
    """
    tokenizer = translator.tokenizer
    (src,), (tgt,) = tokenizer.src.encode([source], threads=1), tokenizer.encode([target], threads=1)
    device = translator.model.softmax_weight.device
    rows = (torch.tensor([*src, EOS_ID], device=device), torch.tensor([BOS_ID, *tgt], device=device))
    cross = attention_weights(translator.model, *rows).cross.mean(dim=(0, 1)).cpu()
    if not cross.isfinite().all():
        raise DataError("the model's attention has NaN for this sentence")
    src_starts, tgt_starts = _word_starts(tokenizer.src, src), _word_starts(tokenizer, tgt)
    by_source, by_target = _members(src_starts, len(src)), _members(tgt_starts, len(tgt))
    words = by_target @ cross[: len(tgt), : len(src)] @ by_source.T / by_target.sum(dim=1, keepdim=True)
    return {
        "source": _words(tokenizer.src, src, src_starts),
        "target": _words(tokenizer, tgt, tgt_starts),
        "weights": [[round(weight, 4) for weight in row] for row in words.tolist()],
    }


def _word_starts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Where words begin: at spaces; at every piece of a text without spaces."""
    pieces = tokenizer.pieces(ids)
    starts = [0, *(place for place in range(1, len(pieces)) if pieces[place].startswith(_SPACE))]
    return starts if len(starts) > 1 else list(range(len(pieces)))


def _members(starts: Sequence[int], pieces: int) -> torch.Tensor:
    """1 where a piece belongs to a word, else 0, ``(words, pieces)``."""
    place = torch.arange(pieces)
    start, end = torch.tensor(starts)[:, None], torch.tensor([*starts[1:], pieces])[:, None]
    return ((place >= start) & (place < end)).float()


def _words(tokenizer: Tokenizer, ids: Sequence[int], starts: Sequence[int]) -> list[str]:
    ends = [*starts[1:], len(ids)]
    texts = tokenizer.decode([ids[start:end] for start, end in zip(starts, ends, strict=True)])
    return [text.strip() for text in texts]
