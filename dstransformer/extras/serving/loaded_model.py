"""The model of a server, inside the process that holds it."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Sequence

import torch

from dstransformer.data import BOS_ID, EOS_ID, Tokenizer
from dstransformer.data.directions import Tags
from dstransformer.decoding import Output, TorchEngine, Translator
from dstransformer.decoding.engine import tokens_per_batch
from dstransformer.errors import DataError
from dstransformer.exchange.ct2_engine import Export
from dstransformer.extras.serving.model import Batch, Candidate, Candidates, ModelInfo, Query
from dstransformer.extras.serving.schema import AttentionAnswer
from dstransformer.model import Bundle, attention_weights

logger = logging.getLogger(__name__)


class LoadedModel:
    """A model in this process; see :class:`dstransformer.extras.serving.model.Model`.

    Args:
        bundle: Its bundle, or the export for CTranslate2.
        translator: The model; its engine keeps NaN.
    """

    ended = None

    def __init__(self, bundle: Bundle | Export, translator: Translator) -> None:
        self._translator = translator
        unlimited = translator.settings.model_copy(update={"max_input_tokens": sys.maxsize})
        translator.tags = Tags(bundle.directions) if bundle.directions else None  # of sentences that begin with them
        self.info = ModelInfo(
            path=bundle.path,
            own_decoding=bundle.decoding,
            decoding=translator.describe(),
            batch_tokens=tokens_per_batch(translator.settings.batch_tokens, translator.settings.beam_size),
            max_tokens=translator.engine.max_input_tokens(unlimited),
            aligns=isinstance(translator.engine, TorchEngine),
            tokenizer=translator.tokenizer,
            src_lang=bundle.src_lang,
            tgt_lang=bundle.tgt_lang,
            directions=bundle.directions,
            weights_sha256=translator.identity[0],
            is_guided=translator.is_guided,
        )

    def warm_up(self) -> None:
        """Translate a word, so that the first request does not wait for one-time initialisation."""
        tag = self.info.directions[0].tag if self.info.directions else None
        self.search(Batch([Query(f"{tag} a" if tag else "a", 1)], 1))

    def search(self, batch: Batch) -> list[Candidates]:
        """See :meth:`dstransformer.extras.serving.model.Model.search`."""
        texts = [query.text for query in batch.queries]
        prefixes = [query.prefix for query in batch.queries]
        outputs = self._translator.search(
            texts,
            n_best=batch.n_best,
            prefixes=prefixes if any(prefixes) else None,
            alignments=batch.alignments,
        )
        found = [_candidates(each) for each in outputs]
        if nan_sentences := found.count(None):
            logger.warning(
                "the model computes NaN for %d of %d sentences; try another --precision; if that does not help, the "
                "weights are damaged",
                nan_sentences, len(found),
            )  # fmt: skip
        return found

    def attention(self, source: str, target: str) -> AttentionAnswer:
        """See :meth:`dstransformer.extras.serving.model.Model.attention`."""
        return word_attention(self._translator, source, target)


def _candidates(outputs: Sequence[Output]) -> Candidates:
    if any(math.isnan(output.log_probability) for output in outputs):
        return None
    return [
        Candidate(text, score, probability, len(tokens), alignment)
        for text, score, probability, tokens, alignment in outputs
    ]


_SPACE = "▁"


def word_attention(translator: Translator, source: str, target: str) -> AttentionAnswer:
    """How much each word of a translation attends to each word of its sentence.

    The weights are those of the encoder-decoder attention, averaged over layers and heads. A word receives what its
    pieces receive together, and attends as its pieces do on average. What is missing from 1 goes to the end of the
    sentence.

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
    return AttentionAnswer(
        source=_words(tokenizer.src, src, src_starts),
        target=_words(tokenizer, tgt, tgt_starts),
        weights=[[round(weight, 4) for weight in row] for row in words.tolist()],
    )


def _word_starts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Where words begin: at spaces; at every piece of a text without spaces."""
    pieces = tokenizer.pieces(ids)
    starts = [0, *(index for index in range(1, len(pieces)) if pieces[index].startswith(_SPACE))]
    return starts if len(starts) > 1 else list(range(len(pieces)))


def _members(starts: Sequence[int], pieces: int) -> torch.Tensor:
    """1 where a piece belongs to a word, else 0, ``(words, pieces)``."""
    index = torch.arange(pieces)
    start, end = torch.tensor(starts)[:, None], torch.tensor([*starts[1:], pieces])[:, None]
    return ((index >= start) & (index < end)).float()


def _words(tokenizer: Tokenizer, ids: Sequence[int], starts: Sequence[int]) -> list[str]:
    ends = [*starts[1:], len(ids)]
    texts = tokenizer.decode([ids[start:end] for start, end in zip(starts, ends, strict=True)])
    return [text.strip() for text in texts]
