"""Pieces that workers leave in the work folder, and repeated pairs found in buckets of their hashes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from pydantic import BaseModel

from data_prep.stages.dedup import (
    bucket_bits,
    first_occurrences,
    judged_piece,
    list_buckets,
    list_rows,
    mark_bucket,
    write_keys,
)
from data_prep.store.chunks import make_piece


class Report(BaseModel):
    number: int


def test_a_finished_piece_is_not_made_again_and_a_damaged_one_is(tmp_path: Path) -> None:
    piece = tmp_path / "judged-000000"
    made = []

    def make(folder: Path) -> Report:
        made.append(folder)
        (folder / "keys").write_bytes(b"abc")
        return Report(number=len(made))

    assert make_piece(piece, Report, make) == make_piece(piece, Report, make) == Report(number=1)
    (piece / "keys").write_bytes(b"abd")
    assert make_piece(piece, Report, make) == Report(number=2)
    (piece / "piece.json").write_text("{")
    assert make_piece(piece, Report, make) == Report(number=3)
    (piece / "keys").unlink()
    assert make_piece(piece, Report, make) == Report(number=4)
    assert list(tmp_path.iterdir()) == [piece]


def test_a_piece_that_fails_leaves_nothing_and_one_that_another_worker_made_stays(tmp_path: Path) -> None:
    piece = tmp_path / "judged-000000"

    def fail(folder: Path) -> Report:
        (folder / "keys").write_bytes(b"abc")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        make_piece(piece, Report, fail)
    assert not list(tmp_path.iterdir())

    def overtaken(folder: Path) -> Report:
        make_piece(piece, Report, lambda _: Report(number=1))
        return Report(number=1)

    assert make_piece(piece, Report, overtaken) == Report(number=1)
    assert list(tmp_path.iterdir()) == [piece]


@given(
    st.lists(st_numpy.arrays(np.uint64, st.integers(0, 9), elements=st.integers(0, 5)), min_size=1, max_size=5),
    st.integers(0, 3),
)
def test_buckets_find_the_first_of_each_hash(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[np.ndarray], bits: int
) -> None:
    root = tmp_path_factory.mktemp("pieces")
    spread = [keys * np.uint64(0x9E3779B97F4A7C15) for keys in pieces]  # over all buckets
    counts = []
    for number, keys in enumerate(spread):
        judged_piece(root, number).mkdir()
        counts.append(write_keys(judged_piece(root, number), keys, bits))
    table = np.array(counts, dtype=np.int64)
    distinct = sum(mark_bucket(bucket).distinct for bucket in list_buckets(root, table))
    found = np.concatenate([first_occurrences(rows) for rows in list_rows(root, table)])
    together = np.concatenate(spread)
    wanted = np.zeros(len(together), dtype=bool)
    wanted[np.unique(together, return_index=True)[1]] = True
    assert found.tolist() == wanted.tolist()
    assert distinct == wanted.sum()


def test_a_bucket_holds_about_four_million_hashes() -> None:
    assert [bucket_bits(rows) for rows in (0, 1, 4_000_000, 4_000_001, 8_000_001, 10**9)] == [0, 0, 0, 1, 2, 8]
