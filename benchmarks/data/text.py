"""Parallel text of any size for measuring data preparation: toy sentences, or variations of a real text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path

from benchmarks.lib.multi30k import LANGUAGES, find_text
from data_prep.grammar.sentences import generate_pairs
from dstransformer.io.text import iter_lines

SENTENCES = 20_000

# The most frequent words stay in a variation; every other word is replaced by the one _STEP ranks further.
_FREQUENT = 50
_STEP = 7919

# Of every ten pairs of a variation, the last repeats the first with another source word: a near duplicate.
_NEAR_EVERY = 10

Pair = tuple[str, str]


def write_text(folder: Path, pairs: int, data: Path | None = None) -> tuple[Path, Path]:
    """Write two texts of ``pairs`` lines.

    Args:
        folder: Where ``text.en`` and ``text.de`` go.
        pairs: Number of lines.
        data: The folder of Multi30k, of which variations are written; without it, lines are two sentences of the toy
            grammar each.
    """
    src, tgt = folder / "text.en", folder / "text.de"
    with src.open("w") as src_file, tgt.open("w") as tgt_file:
        for one, other in islice(vary(data) if data else join_sentences(), pairs):
            src_file.write(f"{one}\n")
            tgt_file.write(f"{other}\n")
    return src, tgt


def join_sentences() -> Iterator[Pair]:
    """Sentences of the toy grammar, each followed by the next one, then by the one after that, and so on."""
    sentences = [pair[:2] for pair in generate_pairs(SENTENCES, seed=1)]
    numbers = chain.from_iterable(
        ((i, (i + shift) % SENTENCES) for i in range(SENTENCES)) for shift in range(1, SENTENCES)
    )
    for first, second in numbers:
        (src_one, tgt_one), (src_two, tgt_two) = sentences[first], sentences[second]
        yield f"{src_one} {src_two}", f"{tgt_one} {tgt_two}"


def vary(data: Path) -> Iterator[Pair]:
    """Repeat a text with other words each time; lengths and word frequencies stay. A tenth nearly repeats."""
    sides = [_Words(list(iter_lines(find_text(data, "train", language)))) for language in LANGUAGES.values()]
    for number in count():
        src, tgt = (side.vary(number) for side in sides)
        for begin in range(0, len(src), _NEAR_EVERY):
            block = list(zip(src[begin : begin + _NEAR_EVERY], tgt[begin : begin + _NEAR_EVERY], strict=True))
            source, target = block[0]
            words = source.split(" ")
            words[len(words) // 2] = sides[0].ranked[(number * _STEP + begin) % len(sides[0].ranked)]
            yield from [*block[:-1], (" ".join(words), target)]


class _Words:
    """The lines of a text as ranks of their words, by frequency."""

    def __init__(self, lines: list[str]) -> None:
        rows = [line.split() for line in lines]
        counts = Counter(chain.from_iterable(rows))
        self.ranked = [word for word, _ in counts.most_common()]
        ranks = {word: rank for rank, word in enumerate(self.ranked)}
        self._rows = [[ranks[word] for word in row] for row in rows]

    def vary(self, number: int) -> list[str]:
        """The lines with their rarer words replaced, differently for each number; 0 replaces none."""
        frequent, rare = self.ranked[:_FREQUENT], self.ranked[_FREQUENT:]
        shift = number * _STEP % len(rare)
        words = [*frequent, *rare[shift:], *rare[:shift]]
        return [" ".join([words[rank] for rank in row]) for row in self._rows]
