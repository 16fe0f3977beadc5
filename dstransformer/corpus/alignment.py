"""Word alignments in the Pharaoh format: ``0-0 1-2`` links word 0 of both sides, and word 1 to word 2 of the target."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dstransformer.errors import DataError, shown

#: A link: the number of a source word and that of a target word, from 0.
Link = tuple[int, int]

_LINK = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)


def parse_links(line: str, words: tuple[int, int], where: str) -> list[Link]:
    """The links of a line, sorted, each once.

    Args:
        line: Links separated by whitespace; none in an empty line.
        words: The words of the source and of the target sentence.
        where: The file and the line, for errors.

    Raises:
        DataError: Something is not a link, or names a word that its sentence does not have. The message says in which
            column, from 1.
    """
    links = set()
    for found in re.finditer(r"\S+", line):
        link = _LINK.fullmatch(found[0])
        place = f"{where}, column {found.start() + 1}"
        if link is None:
            raise DataError(f"{place}: {shown(found[0])} is not a link between two words, such as 0-0")
        numbers = int(link[1]), int(link[2])
        for side, number, count in zip(("source", "target"), numbers, words, strict=True):
            if number >= count:
                has = f"its words are 0 to {count - 1}" if count else "it has no word"
                raise DataError(f"{place}: {found[0]} names word {number} of the {side} sentence, but {has}")
        links.add(numbers)
    return sorted(links)


def format_links(links: Iterable[Link]) -> str:
    """Links on a line, in the order of the source words."""
    return " ".join(f"{src}-{tgt}" for src, tgt in sorted(links))


def read_links(line: str) -> list[Link]:
    """The links of a line that :func:`format_links` has written."""
    return [(int(src), int(tgt)) for src, _, tgt in (link.partition("-") for link in line.split())]
