"""Chunks that workers leave in the work folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from data_prep.store.chunks import write_chunk


class Report(BaseModel):
    number: int


def test_a_finished_chunk_is_not_made_again_and_a_damaged_one_is(tmp_path: Path) -> None:
    chunk = tmp_path / "judged-000000"
    made = []

    def make(folder: Path) -> Report:
        made.append(folder)
        (folder / "keys").write_bytes(b"abc")
        return Report(number=len(made))

    assert write_chunk(chunk, Report, make) == write_chunk(chunk, Report, make) == Report(number=1)
    (chunk / "keys").write_bytes(b"abd")
    assert write_chunk(chunk, Report, make) == Report(number=2)
    (chunk / "chunk.json").write_text("{")
    assert write_chunk(chunk, Report, make) == Report(number=3)
    (chunk / "keys").unlink()
    assert write_chunk(chunk, Report, make) == Report(number=4)
    assert list(tmp_path.iterdir()) == [chunk]


def test_a_chunk_that_fails_leaves_nothing_and_one_that_another_worker_made_stays(tmp_path: Path) -> None:
    chunk = tmp_path / "judged-000000"

    def fail(folder: Path) -> Report:
        (folder / "keys").write_bytes(b"abc")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_chunk(chunk, Report, fail)
    assert not list(tmp_path.iterdir())

    def overtaken(folder: Path) -> Report:
        write_chunk(chunk, Report, lambda _: Report(number=1))
        return Report(number=1)

    assert write_chunk(chunk, Report, overtaken) == Report(number=1)
    assert list(tmp_path.iterdir()) == [chunk]
