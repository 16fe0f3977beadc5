"""Word alignments as text: what is read, written and refused."""

import pytest

from dstransformer.data.alignment import ReferenceAlignment, parse_links, parse_reference
from dstransformer.errors import DataError


def test_a_reference_has_sure_and_possible_links() -> None:
    alignment = parse_reference("2-0 0p1  1?2 0-0\t0p0 2-0", (3, 3), "gold, line 4")
    assert alignment == ReferenceAlignment(((0, 0), (2, 0)), ((0, 1), (1, 2)))
    assert parse_reference("", (0, 0), "") == ReferenceAlignment((), ())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0-0 1p3", "gold, line 4, column 5: 1p3 names word 3 of the target sentence, but its words are 0 to 2"),
        ("0q0", "gold, line 4, column 1: '0q0' is not a link between two words"),
    ],
)
def test_what_does_not_fit_its_pair_is_refused(line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_reference(line, (3, 3), "gold, line 4")


def test_an_alignment_to_learn_has_no_possible_links() -> None:
    assert parse_links("1-2 0-0", (3, 3), "") == [(0, 0), (1, 2)]
    with pytest.raises(DataError, match="links, line 1: 1p2"):
        parse_links("0-0 1p2", (3, 3), "links, line 1")
