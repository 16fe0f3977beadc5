"""What a search gives for a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from dstransformer.data.alignment import Link
from dstransformer.data.words import words_before

#: Lines of a stream that are held at a time: enough to sort them into batches of similar length.
BUFFER_LINES = 4096

#: A text after which Chinese and Japanese have no space: it ends with kana, an ideograph or their punctuation.
_NO_SPACE_FOLLOWS = re.compile("[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef][”’]*$")


class Output(NamedTuple):
    """One output of a sentence.

    Attributes:
        text: Detokenised, on one line; a tree, if the model is a parser.
        score: See :class:`Hypothesis`.
        log_probability: See :class:`Hypothesis`.
        tokens: See :class:`Hypothesis`.
        alignment: The links between the words of the sentence and those of the text without tags, which whitespace
            separates, from 0, sorted; None if nobody asked for them.
    """

    text: str
    score: float
    log_probability: float
    tokens: list[int]
    alignment: list[Link] | None = None


def join_outputs(outputs: Sequence[list[Output]], owners: Sequence[int]) -> list[list[Output]]:
    """Join the best outputs of the parts of each text; scores and log-probabilities are the sums.

    The texts are joined by a space, or by nothing where Chinese and Japanese have none: the target may have spaces
    where the source has none, and the reverse. Alignments count the words of the whole target.
    """
    joined = []
    for _, group in groupby(zip(owners, outputs, strict=True), key=lambda pair: pair[0]):
        best = [found[0] for _, found in group]
        text = ""
        links: list[Link] | None = []
        for one in best:
            text += " " if text and one.text and not _NO_SPACE_FOLLOWS.search(text) else ""
            if one.alignment is None or links is None:
                links = None
            elif one.text:
                before = words_before(text, one.text)
                links += [(src, tgt + before) for src, tgt in one.alignment]
            text += one.text
        score, log_probability = sum(one.score for one in best), sum(one.log_probability for one in best)
        tokens = [token for one in best for token in one.tokens]
        joined.append([Output(text, score, log_probability, tokens, None if links is None else sorted(set(links)))])
    return joined
