"""Word alignments as text: what is read, written and refused; their error rate, against figures worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstransformer.data.alignment import (
    ReferenceAlignment,
    parse_links,
    parse_reference,
    read_references,
    score_alignments,
)
from dstransformer.errors import DataError, UserError


def test_a_reference_has_sure_and_possible_links() -> None:
    alignment = parse_reference("2-0 0p1  1?2 0-0\t0p0 2-0", (3, 3), "gold, line 4")
    assert alignment == ReferenceAlignment(((0, 0), (2, 0)), ((0, 1), (1, 2)))
    assert parse_reference("", (0, 0), "") == ReferenceAlignment((), ())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0-0 1p3", "gold, line 4, column 5: 1p3 names word 3 of the target sentence, but its words are 0 to 2"),
        ("0-0  3-1", "gold, line 4, column 6: 3-1 names word 3 of the source sentence"),
        ("0q0", "gold, line 4, column 1: '0q0' is not a link between two words"),
        ("-1-0", "gold, line 4, column 1: '-1-0' is not a link"),
    ],
)
def test_what_does_not_fit_its_pair_is_refused(line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_reference(line, (3, 3), "gold, line 4")


def test_an_alignment_to_learn_has_no_possible_links() -> None:
    assert parse_links("1-2 0-0", (3, 3), "") == [(0, 0), (1, 2)]
    with pytest.raises(DataError, match="links, line 1: 1p2"):
        parse_links("0-0 1p2", (3, 3), "links, line 1")


def test_figures_by_hand() -> None:
    """|A| = 5, |S| = 4, |A and S| = 2, |A and P| = 3: AER = 1 - 5/9."""
    references = [ReferenceAlignment(((0, 0), (1, 1)), ((1, 2),)), ReferenceAlignment(((0, 0), (1, 0)), ())]
    score = score_alignments([[(0, 0), (1, 2), (2, 2)], [(0, 0), (0, 1)]], references)
    assert (score.aer, score.precision, score.recall) == pytest.approx((1 - 5 / 9, 3 / 5, 2 / 4))
    assert score.record() == {"aer": 0.4444, "precision": 0.6, "recall": 0.5, "pairs": 2, "links": 5, "sure": 4}


def test_bounds() -> None:
    reference = ReferenceAlignment(((0, 0), (1, 1)), ((2, 2),))
    assert score_alignments([reference.sure], [reference]).aer == 0
    assert score_alignments([(*reference.sure, *reference.possible)], [reference]).aer == 0
    worst = score_alignments([[(0, 1)]], [reference])
    assert (worst.aer, worst.precision, worst.recall) == (1, 0, 0)
    none = score_alignments([[]], [ReferenceAlignment((), ())])
    assert none.record() == {"aer": None, "precision": None, "recall": None, "pairs": 1, "links": 0, "sure": 0}


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    texts = {"gold": "0-0 1p1\n\n", "src": "a b\nc\n", "tgt": "x y\nz\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    gold, src, tgt = (str(tmp_path / name) for name in texts)
    return gold, src, tgt


def test_a_reference_is_checked_against_its_pairs(files: tuple[str, str, str]) -> None:
    gold, src, tgt = files
    assert read_references(gold, src, tgt) == [ReferenceAlignment(((0, 0),), ((1, 1),)), ReferenceAlignment((), ())]
    with pytest.raises(UserError, match="is one of the texts"):
        read_references(tgt, src, tgt)
    for text, message in (
        ("0-0\n0-1\n", "gold, line 2, column 1: 0-1 names word 1 of the target sentence, but its words are 0 to 0"),
        ("0-0\n", "gold has fewer lines than .*src: line n must align pair n"),
        ("0-0\n\n\n", "gold has more lines"),
    ):
        Path(gold).write_text(text)
        with pytest.raises(DataError, match=message):
            read_references(gold, src, tgt)
