"""Inputs beyond the limit, translated in parts that end where sentences end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from dstransformer.corpus import Tokenizer

if TYPE_CHECKING:
    from dstransformer.decoding.translator import Output

#: Where a sentence can end: spaces after its last character, closing quotation marks and brackets included.
_SENTENCE_END = re.compile(r"""(?<=[.!?…])\s+|(?<=[.!?…]["'”’»)\]])\s+|(?<=[。！？])""")


def split_long(
    texts: Sequence[str], ids: Sequence[Sequence[int]], most: int, tokenizer: Tokenizer
) -> tuple[list[str], list[int]]:
    """Divide texts of more than ``most`` tokens into parts of whole sentences, as many in a part as fit.

    A single sentence that is too long stays whole.

    Args:
        texts: The texts.
        ids: Their tokens.
        most: Most tokens of a part; 0: any number.
        tokenizer: Counts the tokens of the sentences.

    Returns:
        The parts, and for each the place of its text.
    """
    parts: list[str] = []
    owners: list[int] = []
    for place, (text, tokens) in enumerate(zip(texts, ids, strict=True)):
        divided = [text] if not most or len(tokens) <= most else _pack_sentences(text, most, tokenizer)
        parts += divided
        owners += [place] * len(divided)
    return parts, owners


def _pack_sentences(text: str, most: int, tokenizer: Tokenizer) -> list[str]:
    sentences = [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()] or [text]
    parts: list[str] = []
    room = 0
    for sentence, tokens in zip(sentences, map(len, tokenizer.encode(sentences)), strict=True):
        if parts and tokens <= room:
            parts[-1] += f" {sentence}"
            room -= tokens
        else:
            parts.append(sentence)
            room = most - tokens
    return parts


def join_outputs(outputs: Sequence[list[Output]], owners: Sequence[int]) -> list[list[Output]]:
    """Join the best outputs of the parts of each text; scores and log-probabilities are the sums."""
    joined = []
    for _, group in groupby(zip(owners, outputs, strict=True), key=lambda pair: pair[0]):
        best = [found[0] for _, found in group]
        text = " ".join(one.text for one in best if one.text)
        score, log_probability = sum(one.score for one in best), sum(one.log_probability for one in best)
        joined.append([type(best[0])(text, score, log_probability, [token for one in best for token in one.tokens])])
    return joined
