"""What happens to the alignment of a pair while its text is cleaned and encoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from data_prep.recipe.options import CleanOptions, NormalForm
from data_prep.stages.text import normalise
from dstransformer.data import Tokenizer
from dstransformer.data.alignment import WordBorders, format_links, read_links, words_of_pieces

#: For each word of one text, the words of another that stand for it.
Words = Sequence[Sequence[int]]

#: The largest number of a word that is stored.
_MAX_WORD = (1 << 16) - 1


def cleaned_alignments(raw: pa.Table, src: Sequence[str], tgt: Sequence[str], options: CleanOptions) -> pa.Array:
    """The alignments of pairs between the words that cleaning leaves: null where a pair had none.

    Args:
        raw: Pairs as they were read, with their column ``alignment``.
        src: Their source sentences, normalised.
        tgt: Their target sentences, normalised.
        options: How they were normalised.
    """
    lines = raw["alignment"].to_pylist()
    if not any(lines):
        return pa.array(lines, pa.string())
    raw_sides = raw["src"].to_pylist(), raw["tgt"].to_pylist()
    for row, line in enumerate(lines):
        if line:
            of_src = _normalised_words(raw_sides[0][row], src[row], options.normalise)
            of_tgt = _normalised_words(raw_sides[1][row], tgt[row], options.normalise_target)
            lines[row] = format_links({(a, b) for s, t in read_links(line) for a in of_src[s] for b in of_tgt[t]})
    return pa.array(lines, pa.string())


def _normalised_words(raw: str, normalised: str, form: NormalForm) -> Words:
    """The words that stand for each word of a raw text; a word may become several, or none."""
    before, after = raw.split(), normalised.split()
    if before == after:
        return [(number,) for number in range(len(before))]
    counts = [len(normalise(word, form).split()) for word in before]
    if sum(counts) != len(after):
        return [()] * len(before)
    return [range(end - count, end) for end, count in zip(np.cumsum(counts).tolist(), counts, strict=True)]


class AlignmentEncoder:
    """Turns links between the words of texts into links between the words of their pieces.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._sides = [(one, WordBorders(one)) for one in (tokenizer.src, tokenizer)]

    def encode(
        self,
        lines: Sequence[str | None],
        texts: tuple[Sequence[str], Sequence[str]],
        ids: tuple[pa.ListArray, pa.ListArray],
        skipped: Sequence[int],
    ) -> pa.ListArray:
        """The links of pairs, two numbers each, one after the other; none for a pair without an alignment.

        Args:
            lines: The alignments.
            texts: The source sentences and the target sentences.
            ids: Their pieces.
            skipped: The words that each source sentence begins with and that the alignment does not count: its tag.
        """
        rows = [number for number, line in enumerate(lines) if line]
        src, tgt = (
            self._words(side, [texts[side][row] for row in rows], ids[side].take(pa.array(rows, pa.int64())))
            for side in range(2)
        )
        links: list[list[int]] = [[] for _ in lines]
        for row, one, other in zip(rows, src, tgt, strict=True):
            line = str(lines[row])
            moved = {
                (a, b)
                for source, target in read_links(line)
                for a in one.get(source + skipped[row], ())
                for b in other.get(target, ())
            }
            links[row] = [number for link in sorted(moved) if max(link) <= _MAX_WORD for number in link]
        return pa.array(links, pa.list_(pa.uint16()))

    def _words(self, side: int, texts: Sequence[str], ids: pa.ListArray) -> list[dict[int, list[int]]]:
        """For each sentence the words of its pieces that spell each word of its text."""
        tokenizer, borders = self._sides[side]
        lengths = ids.value_lengths().to_numpy()
        numbers = borders.numbers(ids.flatten().to_numpy(), lengths)
        sentences = []
        for of_text, of_pieces in zip(
            words_of_pieces(tokenizer, texts), np.split(numbers, np.cumsum(lengths)[:-1]), strict=True
        ):
            words: dict[int, list[int]] = {}
            for word, number in zip(of_text, of_pieces.tolist(), strict=True):
                if number not in words.setdefault(word, []):
                    words[word].append(number)
            sentences.append(words)
        return sentences
