"""Held-out sets of several translation directions: which sentences are translated, and a score for each direction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dstransformer.data import Split
from dstransformer.evaluation.result import Score

#: Scores the outputs of a direction against their references.
Scorer = Callable[[Sequence[str], Sequence[str], str], tuple[Score, ...]]


def covered_rows(split: Split, sentences: int) -> dict[str, range]:
    """The rows of each direction that are translated, its first ``sentences`` (0: all), by name.

    A split of one direction has one entry, whose name is empty.
    """
    rows = split.directions or {"": range(len(split))}
    return {name: own[:sentences] if sentences else own for name, own in rows.items()}


def largest_direction(split: Split) -> int:
    """The number of pairs of the largest direction; of a split of one direction, all pairs."""
    return max(map(len, split.directions.values()), default=len(split))


def score_directions(
    scorer: Scorer, rows: Mapping[str, Sequence[int]], outputs: Sequence[str], references: Sequence[str]
) -> tuple[Score, ...]:
    """Score the outputs of each direction.

    Args:
        scorer: Scores the outputs of one direction.
        rows: The rows of each direction, see :func:`covered_rows`.
        outputs: The outputs of these rows, one direction after the other.
        references: Their references.

    Returns:
        The scores, if there is one direction. Otherwise their means over the directions, in which each counts the same,
        then those of each direction: ``bleu``, ``chrf``, ``bleu_en-de``, ``chrf_en-de``, ``bleu_de-en`` …
    """
    found: dict[str, tuple[Score, ...]] = {}
    begin = 0
    for name, own in rows.items():
        end = begin + len(own)
        found[name] = scorer(outputs[begin:end], references[begin:end], name)
        begin = end
    if len(found) == 1:
        return next(iter(found.values()))
    means = [
        Score(same[0].name, sum(score.value for score in same) / len(same), f"mean:{len(same)}|{_signatures(same)}")
        for same in zip(*found.values(), strict=True)
    ]
    own_scores = [replace(score, name=f"{score.name}_{name}") for name, scores in found.items() for score in scores]
    return (*means, *own_scores)


def _signatures(scores: Sequence[Score]) -> str:
    """The different signatures, in order; one if all are computed in the same way."""
    return " + ".join(dict.fromkeys(score.signature for score in scores))


def interleaved(rows: Mapping[str, range]) -> list[int]:
    """The positions of outputs, in turn of each direction; see :func:`score_directions` for their order."""
    begins, begin = [], 0
    for own in rows.values():
        begins.append((begin, len(own)))
        begin += len(own)
    longest = max(length for _, length in begins)
    return [first + place for place in range(longest) for first, length in begins if place < length]
