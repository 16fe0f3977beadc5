"""How well word alignments agree with a reference: alignment error rate, precision and recall (Och and Ney, 2003)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from dstransformer.data.alignment import Link, ReferenceAlignment, parse_reference
from dstransformer.errors import DataError, UserError
from dstransformer.io.text import is_same_file, iter_file_pairs, iter_lines


@dataclass
class AlignmentScore:
    """Counts of links over all pairs, and the figures that they give.

    Attributes:
        pairs: Pairs of sentences.
        links: Links found, *A*.
        sure: Sure links of the reference, *S*.
        found_sure: Links found that are sure.
        found_possible: Links found that are sure or possible, *A* and *P*.
    """

    pairs: int = 0
    links: int = 0
    sure: int = 0
    found_sure: int = 0
    found_possible: int = 0

    def add(self, links: Iterable[Link], reference: ReferenceAlignment) -> None:
        """Count the links of a pair."""
        found, sure = set(links), set(reference.sure)
        self.pairs += 1
        self.links += len(found)
        self.sure += len(sure)
        self.found_sure += len(found & sure)
        self.found_possible += len(found & (sure | set(reference.possible)))

    @property
    def aer(self) -> float | None:
        """The alignment error rate, from 0 (best) to 1; None without any link."""
        wanted = self.links + self.sure
        return 1 - (self.found_sure + self.found_possible) / wanted if wanted else None

    @property
    def precision(self) -> float | None:
        """The share of the links found that are sure or possible; None if none was found."""
        return self.found_possible / self.links if self.links else None

    @property
    def recall(self) -> float | None:
        """The share of the sure links that were found; None if there are none."""
        return self.found_sure / self.sure if self.sure else None

    def record(self) -> dict[str, int | float | None]:
        """The figures, rounded, and the counts behind them."""
        figures = {"aer": self.aer, "precision": self.precision, "recall": self.recall}
        rounded = {name: value if value is None else round(value, 4) for name, value in figures.items()}
        return rounded | {"pairs": self.pairs, "links": self.links, "sure": self.sure}


def score_alignments(alignments: Iterable[Sequence[Link]], references: Sequence[ReferenceAlignment]) -> AlignmentScore:
    """Compare the links of pairs with their references, one by one.

    Raises:
        ValueError: The numbers of pairs differ.
    """
    score = AlignmentScore()
    for links, reference in zip(alignments, references, strict=True):
        score.add(links, reference)
    return score


def read_references(path: str, src: str, tgt: str) -> list[ReferenceAlignment]:
    """Read the reference alignments of the pairs of two text files.

    Args:
        path: A line for each pair: sure links such as ``0-0``, possible ones such as ``1p3`` or ``1?3``, of
            whitespace-separated words, from 0.
        src: Source text.
        tgt: Its translation.

    Raises:
        UserError: The reference is one of the texts.
        DataError: A file cannot be read, a line does not fit its pair, or the numbers of lines differ.
    """
    if is_same_file(path, src) or is_same_file(path, tgt):
        raise UserError(f"--reference {path} is one of the texts: name the file of their right links")
    references = []
    for number, (line, pair) in enumerate(zip_longest(iter_lines(path), iter_file_pairs(src, tgt)), 1):
        if line is None or pair is None:
            raise DataError(
                f"{path} has {'fewer' if line is None else 'more'} lines than {src}: line n must align pair n"
            )
        references.append(parse_reference(line, (len(pair[0].split()), len(pair[1].split())), f"{path}, line {number}"))
    return references
