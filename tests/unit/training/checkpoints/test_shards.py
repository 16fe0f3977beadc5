"""Weights and moments on disk: any range can be read from any cut, and what is not whole is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dstransformer.errors import DataError
from dstransformer.training.checkpoints.shards import WEIGHT, Shard, ShardReader, write_shards

WHOLE = torch.arange(10.0)


def write_cut(folder: Path, *cuts: tuple[int, int], first_rank: int = 0) -> None:
    for rank, (start, end) in enumerate(cuts, start=first_rank):
        write_shards(folder, rank, [Shard("w", start, {WEIGHT: WHOLE[start:end].clone()})])


def test_any_range_is_read_from_any_cut(tmp_path: Path) -> None:
    write_cut(tmp_path, (7, 10), (0, 3), (3, 7))
    with ShardReader(tmp_path) as reader:
        reader.check({"w": 10}, {"w": [WEIGHT]})
        for start in range(10):
            for end in range(start + 1, 11):
                into = torch.full((end - start,), -1.0)
                reader.read(WEIGHT, "w", start, into)
                assert torch.equal(into, WHOLE[start:end])


@pytest.mark.parametrize(("cuts", "message"), [
    ([(0, 3), (4, 10)], "of weight w it has 3 of 10 elements"),
    ([(0, 5), (4, 10)], "its files hold element 4 of weight w twice"),
    ([(0, 9)], "of weight w it has 9 of 10 elements"),
    ([(0, 10), (5, 10)], "its files hold element 5 of weight w twice"),
    ([], "of weight w it has 0 of 10 elements; copy it again"),
])  # fmt: skip
def test_gaps_overlaps_and_files_of_another_number_of_ranks_are_refused(
    tmp_path: Path, cuts: list[tuple[int, int]], message: str
) -> None:
    write_cut(tmp_path, *cuts)
    with ShardReader(tmp_path) as reader, pytest.raises(DataError, match=message):
        reader.check({"w": 10}, {"w": [WEIGHT]})


def test_another_model_is_refused(tmp_path: Path) -> None:
    write_cut(tmp_path, (0, 10))
    with ShardReader(tmp_path) as reader:
        with pytest.raises(DataError, match=r"weight v .*0 of 2"):
            reader.check({"w": 10, "v": 2}, {"w": [WEIGHT], "v": [WEIGHT]})
        with pytest.raises(DataError, match="'w'"):
            reader.check({}, {})
        with pytest.raises(DataError, match=r"1 elements of w \(weight\)"):
            reader.read(WEIGHT, "w", 8, torch.empty(3))


@pytest.mark.parametrize("name", ["weight/w", "weight/w/0/1", "weight/w/none", "weight/w/0"])
def test_files_of_another_kind_are_refused(tmp_path: Path, name: str) -> None:
    save_file({name: torch.tensor(1.0)}, tmp_path / "rank-00000.safetensors")
    with pytest.raises(DataError, match=str(tmp_path)):
        ShardReader(tmp_path)
