"""The texts of a search: inputs beyond the limit are cut, left out or divided, and outputs joined again."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from itertools import groupby, islice
from typing import NamedTuple

from dstransformer.data import Tokenizer
from dstransformer.data.alignment import Link, words_before
from dstransformer.data.sentences import NO_SPACE_FOLLOWS, with_spaces
from dstransformer.io.languages import SPACED_ENDS, UNSPACED_ENDS

logger = logging.getLogger(__name__)

#: Lines of a stream that are held at a time: enough to sort them into batches of similar length.
BUFFER_LINES = 4096

_CLOSING = "\"'”’»)\\]」』）"

#: Where a sentence can end: spaces after its last character, closing quotation marks and brackets included; where its
#: script has no spaces, also nothing.
_SENTENCE_END = re.compile(
    rf"(?<=[{SPACED_ENDS}])\s+|(?<=[{SPACED_ENDS}][{_CLOSING}])\s+"
    rf"|(?<=[{UNSPACED_ENDS}])(?![{_CLOSING}])\s*|(?<=[{UNSPACED_ENDS}][{_CLOSING}])\s*"
)


class Output(NamedTuple):
    """One output of a sentence.

    Attributes:
        text: Detokenised, on one line unless texts are split; a tree, if the model is a parser.
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


def limit_inputs(src: Sequence[Sequence[int]], numbers: Sequence[int], *, limit: int, how: str) -> list[Sequence[int]]:
    """Cut sentences of more than ``limit`` tokens to their first, or leave them without tokens; with one warning.

    Args:
        src: The sentences.
        numbers: Their numbers, for the warning.
        limit: Maximum tokens of a sentence, and those that are kept of a longer one; 0: any number.
        how: The value of ``decoding.long_inputs``: ``refuse`` keeps none; ``split`` has divided where a sentence ends.
    """
    long = [index for index, ids in enumerate(src) if limit and len(ids) > limit]
    if not long:
        return list(src)
    refuse = how == "refuse"
    advice = "divide it, or let --long split (decoding.long_inputs) do so"
    if how == "split":
        advice = "no sentence ends in it: divide it"
    done = "it gets no output" if refuse else f"only its first {limit:,} are translated"
    others = f", as with {len(long) - 1:,} more" if len(long) > 1 else ""
    logger.warning(
        "sentence %d has %s tokens: %s (--max-input-tokens, decoding.max_input_tokens)%s; %s",
        numbers[long[0]], f"{len(src[long[0]]):,}", done, others, advice,
    )  # fmt: skip
    return [ids if len(ids) <= limit else [] if refuse else ids[:limit] for ids in src]


def split_symbols(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Divide texts into the tag and the space that each begins with, or nothing, and the rest.

    A tag is a first word that is a symbol of the tokenizer.
    """
    tags = {symbol.removeprefix("▁") for symbol in tokenizer.symbols if symbol.startswith("▁")}
    found = [text.lstrip().partition(" ") for text in texts]
    begins = [f"{word} " if word in tags else "" for word, _, _ in found]
    rests = [rest if begin else text for text, begin, (_, _, rest) in zip(texts, begins, found, strict=True)]
    return begins, rests


def split_long(
    texts: Sequence[str], ids: Sequence[Sequence[int]], limits: Sequence[int], tokenizer: Tokenizer
) -> tuple[list[str], list[int]]:
    """Divide texts of more tokens than their limits into parts of whole sentences, as many in a part as fit.

    A single sentence that is too long stays whole. Between the sentences of a part is what was there in the text.

    Args:
        texts: The texts.
        ids: Their tokens.
        limits: Maximum tokens of a part of each text; 0: any number.
        tokenizer: Counts the tokens of the sentences.

    Returns:
        The parts, and the index of the text of each.
    """
    parts: list[str] = []
    owners: list[int] = []
    for index, (text, tokens, limit) in enumerate(zip(texts, ids, limits, strict=True)):
        divided = [text] if not limit or len(tokens) <= limit else _pack_sentences(text, limit, tokenizer)
        parts += divided
        owners += [index] * len(divided)
    return parts, owners


def first_words(texts: Sequence[str], parts: Sequence[str], owners: Sequence[int]) -> list[int]:
    """The number, from 0, of the first word of each part in its text; arguments as :func:`split_long` returns them."""
    numbers: list[int] = []
    end = 0
    for index, (part, owner) in enumerate(zip(parts, owners, strict=True)):
        begin = texts[owner].index(part, end if index and owners[index - 1] == owner else 0)
        end = begin + len(part)
        numbers.append(words_before(texts[owner][:begin], part))
    return numbers


def _pack_sentences(text: str, limit: int, tokenizer: Tokenizer) -> list[str]:
    spans = _sentence_spans(text)
    # A tokenizer that does not normalise makes tokens of the spaces between two sentences too.
    ends = [begin for begin, _ in spans[1:]] + [len(text)]
    with_spaces = [text[begin:end] for (begin, _), end in zip(spans, ends, strict=True)]
    parts: list[tuple[int, int]] = []
    room = 0
    for (begin, end), tokens in zip(spans, map(len, tokenizer.encode(with_spaces)), strict=True):
        if parts and tokens <= room:
            parts[-1] = (parts[-1][0], end)
            room -= tokens
        else:
            parts.append((begin, end))
            room = limit - tokens
    return [text[begin:end] for begin, end in parts]


def _sentence_spans(text: str) -> list[tuple[int, int]]:
    """Where each sentence of a text begins and ends; a text of spaces is one sentence."""
    spans: list[tuple[int, int]] = []
    begin = 0
    for separator in _SENTENCE_END.finditer(text):
        spans.append((begin, separator.start()))
        begin = separator.end()
    spans.append((begin, len(text)))
    return [span for span in spans if text[slice(*span)].strip()] or [(0, len(text))]


def join_outputs(
    outputs: Sequence[list[Output]], owners: Sequence[int], sources: tuple[Sequence[str], Sequence[str]] | None = None
) -> list[list[Output]]:
    """Join the best outputs of the parts of each text; scores and log-probabilities are the sums.

    The texts are joined by a space, or by nothing where Chinese and Japanese have none: the target may have spaces
    where the source has none, and the reverse. Alignments count the words of the whole target.

    Args:
        outputs: The outputs of each part.
        owners: The index of the text of each part.
        sources: The texts and all their parts, if the outputs are to have what is before, between and after these.
    """
    joined = []
    sentences = iter(() if sources is None else sources[1])
    for owner, group in groupby(zip(owners, outputs, strict=True), key=lambda pair: pair[0]):
        best = [found[0] for _, found in group]
        texts = [one.text for one in best]
        chunks = (
            _spaced(texts)
            if sources is None
            else with_spaces(sources[0][owner], [*islice(sentences, len(best))], texts)
        )
        text = ""
        links: list[Link] | None = []
        for one, chunk in zip(best, chunks, strict=False):
            if one.alignment is None or links is None:
                links = None
            elif one.text:
                before = words_before(text, chunk)
                links += [(src, tgt + before) for src, tgt in one.alignment]
            text += chunk
        score, log_probability = sum(one.score for one in best), sum(one.log_probability for one in best)
        tokens = [token for one in best for token in one.tokens]
        links = None if links is None else sorted(set(links))
        joined.append([Output("".join(chunks), score, log_probability, tokens, links)])
    return joined


def _spaced(texts: Sequence[str]) -> list[str]:
    """Each text with the space before it, if there is one."""
    chunks = []
    before = ""
    for text in texts:
        chunks.append(f" {text}" if before and text and not NO_SPACE_FOLLOWS.search(before) else text)
        before = text or before
    return chunks
