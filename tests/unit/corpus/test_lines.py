from __future__ import annotations

import gzip
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dstransformer.corpus.lines import iter_lines, writing_lines
from dstransformer.errors import DataError, StorageError


@pytest.mark.parametrize(("content", "lines"), [
    (b"one\ntwo\n", ["one", "two"]),
    (b"one\r\n\r\ntwo", ["one", "", "two"]),
    ("\ufeffone\n\ufefftwo\u2028three\x0bfour\n".encode(), ["one", "\ufefftwo\u2028three\x0bfour"]),
    (b"\n", [""]),
])  # fmt: skip
def test_a_line_ends_with_a_line_feed_only(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "zipped").write_bytes(gzip.compress(content))
    assert list(iter_lines(tmp_path / "plain")) == lines
    assert list(iter_lines(tmp_path / "zipped")) == lines


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"good\n\xc3\n")
    lines = iter_lines(path)
    assert next(lines) == "good"
    with pytest.raises(DataError, match=f"{path}, line 2, byte 1: not UTF-8"):
        next(lines)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=f"{path} is empty"):
        list(iter_lines(path))
    with pytest.raises(DataError, match=f"cannot read {tmp_path}: Is a directory"):
        list(iter_lines(tmp_path))


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old\n")

    def fail_halfway() -> None:
        with writing_lines(path) as write:
            write("new")
            raise DataError("bad input")

    with pytest.raises(DataError, match="bad input"):
        fail_halfway()
    assert path.read_text() == "old\n"
    with writing_lines(path) as write:
        write("über")
        assert path.read_text() == "old\n"
    assert path.read_text(encoding="utf-8") == "über\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "missing" / "out"):
        with pytest.raises(StorageError, match=f"cannot write {target}: "), writing_lines(target):
            pytest.fail("the block must not run")


@pytest.mark.parametrize("length", [1, 100_000])
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, length: int) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    (tmp_path / ".out.partial").symlink_to(full)
    with pytest.raises(StorageError, match="No space left on device"), writing_lines(tmp_path / "out") as write:
        write("x" * length)
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        answer = reader.submit(pipe.read_text, encoding="utf-8")
        with writing_lines(pipe) as write:
            write("über")
        assert answer.result() == "über\n"
    assert list(tmp_path.iterdir()) == [pipe]
    assert pipe.is_fifo()
