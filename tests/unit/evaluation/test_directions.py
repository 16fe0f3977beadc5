"""Held-out sets of several directions: rows, and a score for each direction beside their mean."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dstransformer.evaluation.result import Score
from dstransformer.evaluation.validation import covered_rows, interleaved, largest_direction, score_directions


class FakeSplit(SimpleNamespace):
    def __len__(self) -> int:
        return int(self.pairs)


ONE: Any = FakeSplit(pairs=5, directions={})
TWO: Any = FakeSplit(pairs=5, directions={"en-de": range(3), "de-en": range(3, 5)})


@pytest.mark.parametrize(("split", "sentences", "rows"), [
    (ONE, 0, {"": range(5)}),
    (ONE, 2, {"": range(2)}),
    (ONE, 9, {"": range(5)}),
    (TWO, 0, {"en-de": range(3), "de-en": range(3, 5)}),
    (TWO, 1, {"en-de": range(1), "de-en": range(3, 4)}),
    (TWO, 9, {"en-de": range(3), "de-en": range(3, 5)}),
])  # fmt: skip
def test_the_first_sentences_of_each_direction_are_covered(split: Any, sentences: int, rows: dict[str, range]) -> None:
    assert covered_rows(split, sentences) == rows


def test_the_largest_direction_decides_whether_a_score_covers_all() -> None:
    assert (largest_direction(ONE), largest_direction(TWO)) == (5, 3)


def scorer(outputs: Sequence[str], references: Sequence[str], direction: str) -> tuple[Score, ...]:
    same = 100 * sum(a == b for a, b in zip(outputs, references, strict=True)) / len(outputs)
    return Score("bleu", same, "tok:zh" if direction == "en-zh" else "tok:13a"), Score("chrf", same / 2, "nc:6")


def test_each_direction_has_its_scores_beside_their_mean() -> None:
    found = score_directions(scorer, covered_rows(TWO, 0), ["a", "b", "x", "d", "e"], ["a", "b", "c", "d", "e"])
    assert [(score.name, round(score.value, 2)) for score in found] == [
        ("bleu", 83.33), ("chrf", 41.67),
        ("bleu_en-de", 66.67), ("chrf_en-de", 33.33), ("bleu_de-en", 100.0), ("chrf_de-en", 50.0),
    ]  # fmt: skip
    assert [score.signature for score in found[:3]] == ["mean:2|tok:13a", "mean:2|nc:6", "tok:13a"]
    assert [score.label for score in found[::2]] == ["BLEU", "BLEU en-de", "BLEU de-en"]


def test_a_mean_names_all_signatures() -> None:
    rows = {"en-de": range(1), "en-zh": range(1)}
    found = score_directions(scorer, rows, ["a", "b"], ["a", "b"])
    assert found[0].signature == "mean:2|tok:13a + tok:zh"
    assert [score.signature for score in found[2::2]] == ["tok:13a", "tok:zh"]


def test_one_direction_has_its_scores_only() -> None:
    outputs = ["a", "x"]
    assert score_directions(scorer, {"": range(2)}, outputs, ["a", "b"]) == scorer(outputs, ["a", "b"], "")


def test_samples_come_in_turn_from_each_direction() -> None:
    assert interleaved({"en-de": range(10, 13), "de-en": range(20, 21)}) == [0, 3, 1, 2]
    assert interleaved({"": range(3)}) == [0, 1, 2]
