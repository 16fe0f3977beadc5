from __future__ import annotations

import errno
from pathlib import Path

import pytest

from dstransformer.errors import DataError, StorageError
from dstransformer.training.storage import replace_folder, storage_errors


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "bundle"

    def good(folder: Path) -> None:
        folder.mkdir()
        (folder / "file").write_text("new")

    def bad(folder: Path) -> None:
        good(folder)
        raise DataError("no")

    replace_folder(target, good)
    (target / "file").write_text("old")
    with pytest.raises(DataError):
        replace_folder(target, bad)
    assert (target / "file").read_text() == "old"
    replace_folder(target, good)
    assert (target / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_replacement_that_was_cut_short_loses_nothing(tmp_path: Path) -> None:
    target, old = tmp_path / "bundle", tmp_path / ".bundle.old"
    old.mkdir()
    (old / "file").write_text("old")

    def fail(folder: Path) -> None:
        raise DataError("no")

    with pytest.raises(DataError):
        replace_folder(target, fail)
    assert (target / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize(("number", "advice"), [
    (errno.ENOSPC, "make room"), (errno.EDQUOT, "make room"), (errno.EACCES, "check the path and its permissions"),
])  # fmt: skip
def test_what_the_file_system_refuses_is_one_line(tmp_path: Path, number: int, advice: str) -> None:
    with pytest.raises(StorageError, match=f"cannot write {tmp_path}: .*; {advice}"), storage_errors(tmp_path):
        raise OSError(number, "no")
