"""Word alignments in the Pharaoh format: ``0-0 1-2`` links word 0 of both sides, and word 1 to word 2 of the target.

A reference, which others are measured by, also has *possible* links, ``1p3``, that are no error (Och and Ney, 2003).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from dstransformer.errors import DataError, shown

#: A link: the number of a source word and that of a target word, from 0.
Link = tuple[int, int]

_LINK = re.compile(r"(\d{1,9})([-p?])(\d{1,9})", re.ASCII)


class ReferenceAlignment(NamedTuple):
    """The right links of a pair.

    Attributes:
        sure: Links that an alignment must have, sorted.
        possible: Other links, which it may have, sorted.
    """

    sure: tuple[Link, ...]
    possible: tuple[Link, ...]

    def swapped(self) -> ReferenceAlignment:
        """The links of the opposite direction."""
        sure, possible = (tuple(sorted((tgt, src) for src, tgt in links)) for links in self)
        return ReferenceAlignment(sure, possible)


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
    links, possible = _parse(line, words, where)
    if possible:
        src, tgt = min(possible)
        raise DataError(
            f"{where}: {src}p{tgt} is a possible link, which only a reference has: write {src}-{tgt}, or leave it out"
        )
    return sorted(links)


def parse_reference(line: str, words: tuple[int, int], where: str) -> ReferenceAlignment:
    """The links of a line of a reference: sure ones such as ``0-0``, possible ones such as ``1p3`` or ``1?3``.

    Arguments and errors are those of ``parse_links``. A link that is given as both is sure.
    """
    sure, possible = _parse(line, words, where)
    return ReferenceAlignment(tuple(sorted(sure)), tuple(sorted(possible - sure)))


def _parse(line: str, words: tuple[int, int], where: str) -> tuple[set[Link], set[Link]]:
    links: tuple[set[Link], set[Link]] = set(), set()
    for found in re.finditer(r"\S+", line):
        link = _LINK.fullmatch(found[0])
        place = f"{where}, column {found.start() + 1}"
        if link is None:
            raise DataError(f"{place}: {shown(found[0])} is not a link between two words, such as 0-0")
        numbers = int(link[1]), int(link[3])
        for side, number, count in zip(("source", "target"), numbers, words, strict=True):
            if number >= count:
                has = f"its words are 0 to {count - 1}" if count else "it has no word"
                raise DataError(f"{place}: {found[0]} names word {number} of the {side} sentence, but {has}")
        links[link[2] != "-"].add(numbers)
    return links


def format_links(links: Iterable[Link]) -> str:
    """Links on a line, in the order of the source words."""
    return " ".join(f"{src}-{tgt}" for src, tgt in sorted(links))


def format_reference(alignment: ReferenceAlignment) -> str:
    """The links of a reference on a line, in the order of the source words, as :func:`parse_reference` reads them."""
    marked = [(link, "-") for link in alignment.sure] + [(link, "p") for link in alignment.possible]
    return " ".join(f"{src}{mark}{tgt}" for (src, tgt), mark in sorted(marked))


def read_links(line: str) -> list[Link]:
    """The links of a line that :func:`format_links` has written."""
    return [(int(src), int(tgt)) for src, _, tgt in (link.partition("-") for link in line.split())]
