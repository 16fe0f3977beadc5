"""The model that a server answers with, as the process that holds it sees it."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from dstransformer.decoding import Output, Translator
from dstransformer.model import Bundle
from dstransformer.serving.attention import word_attention
from dstransformer.serving.model import Batch, Candidate, Facts, Found, Query

logger = logging.getLogger(__name__)


class LoadedModel:
    """A model in this process; see :class:`dstransformer.serving.model.Model`.

    Args:
        bundle: Where it comes from.
        translator: The model; its engine keeps NaN.
    """

    ended = None

    def __init__(self, bundle: Bundle, translator: Translator) -> None:
        self._translator = translator
        self.facts = Facts(
            path=bundle.path,
            architecture=bundle.model,
            own_decoding=bundle.decoding,
            decoding=translator.describe(),
            tokenizer=bundle.tokenizer,
            src_lang=bundle.src_lang,
            tgt_lang=bundle.tgt_lang,
            weights_sha256=bundle.weights_sha256,
        )

    def warm_up(self) -> None:
        """Translate a word, so that the first request does not wait for what is built at first use."""
        self.search(Batch([Query("a", 1)], 1))

    def search(self, batch: Batch) -> list[Found]:
        """See :meth:`dstransformer.serving.model.Model.search`."""
        texts = [query.text for query in batch.queries]
        prefixes = [query.prefix for query in batch.queries]
        outputs = self._translator.search(texts, n_best=batch.n_best, prefixes=prefixes if any(prefixes) else None)
        found = [_candidates(each) for each in outputs]
        if lost := found.count(None):
            logger.warning(
                "the model computes NaN for %d of %d sentences; try another --precision; if that does not help, the "
                "weights are damaged",
                lost, len(found),
            )  # fmt: skip
        return found

    def attention(self, source: str, target: str) -> dict[str, Any]:
        """See :meth:`dstransformer.serving.model.Model.attention`."""
        return word_attention(self._translator, source, target)


def _candidates(outputs: Sequence[Output]) -> Found:
    if any(math.isnan(output.log_probability) for output in outputs):
        return None
    return [Candidate(text, score, probability, len(tokens)) for text, score, probability, tokens in outputs]
