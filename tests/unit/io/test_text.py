from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.faults.disk import full_disk

from dstransformer.errors import DataError, StorageError, UserError
from dstransformer.io.text import iter_arriving, iter_lines, writing_files, writing_lines


@pytest.mark.parametrize(("content", "lines"), [
    (b"one\ntwo\n", ["one", "two"]),
    (b"one\r\n\r\ntwo", ["one", "", "two"]),
    ("\ufeffone\n\ufefftwo\u2028three\x0bfour\n".encode(), ["one", "\ufefftwo\u2028three\x0bfour"]),
    (b"\n", [""]),
])  # fmt: skip
def test_only_line_feeds_end_lines(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "zipped").write_bytes(gzip.compress(content))
    assert list(iter_lines(tmp_path / "plain")) == lines
    assert list(iter_lines(tmp_path / "zipped")) == lines


def test_unreadable_text_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"good\n\xc3\n")
    lines = iter_lines(path)
    assert next(lines) == "good"
    with pytest.raises(DataError, match=f"{path}, line 2, byte 1"):
        next(lines)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=f"{path} is empty"):
        list(iter_lines(path))
    with pytest.raises(DataError, match="standard input"):
        list(iter_lines("-"))
    with pytest.raises(DataError, match=f"{tmp_path}: Is a directory"):
        list(iter_lines(tmp_path))


def test_a_file_appears_only_when_complete(tmp_path: Path) -> None:
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


def test_an_unwritable_path_is_named(tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "missing" / "out"):
        with pytest.raises(StorageError, match=f"cannot write {target}: "), writing_lines(target):
            pytest.fail("the block must not run")


@pytest.mark.parametrize("length", [1, 100_000])
@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path, name: str, length: int) -> None:
    def write_it() -> None:
        with writing_lines(tmp_path / name) as write:
            write("x" * length)

    with full_disk(), pytest.raises(StorageError, match=str(tmp_path / name)):
        write_it()
    assert list(tmp_path.iterdir()) == []


def test_an_input_is_never_replaced(tmp_path: Path) -> None:
    source = tmp_path / "text"
    source.write_text("mine\n")
    (tmp_path / "link").symlink_to(source)
    os.link(source, tmp_path / "hard")
    with source.open() as file:
        for name in ("text", "link", "hard"):
            for given in (source, file.fileno()):
                with (
                    pytest.raises(UserError, match=name),
                    writing_lines(tmp_path / name, inputs=[given]),
                ):
                    pytest.fail("the block must not run")
    assert source.read_text() == "mine\n"


def test_a_file_is_written_by_one_command_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with writing_lines(path, overwrite=False) as write:
        write("first")
        with (
            pytest.raises(UserError, match=f"{path} .*{os.getpid()}"),
            writing_lines(path),
        ):
            pytest.fail("the block must not run")
    assert path.read_text() == "first\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out"

    def write_it() -> None:
        with writing_lines(path, overwrite=False) as write:
            write("new")
            path.write_text("other\n")

    with pytest.raises(UserError, match=r"out .*--overwrite"):
        write_it()
    assert path.read_text() == "other\n"
    assert list(tmp_path.iterdir()) == [path]


def test_the_unfinished_file_of_a_killed_command_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".out.unfinished").write_text("half of a long tex")
    with writing_lines(tmp_path / "out") as write:
        write("new")
    assert (tmp_path / "out").read_text() == "new\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_files_appear_together(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    two.write_text("mine\n")
    with (
        pytest.raises(UserError, match=f"{two} already exists"),
        writing_files([one, two], overwrite=False),
    ):
        pytest.fail("the block must not run")
    assert list(tmp_path.iterdir()) == [two]
    with writing_files([one, two]) as (write_one, write_two):
        write_one("1")
        write_two("2")
        assert not one.exists()
    assert (one.read_text(), two.read_text()) == ("1\n", "2\n")
    assert sorted(tmp_path.iterdir()) == [one, two]


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


@pytest.mark.parametrize(("content", "advice"), [
    ("dog\n".encode("utf-16"), "line 1, byte 1: not UTF-8 (0xff)"),
    ("\ufeffdog\n".encode("utf-16-be"), "line 1, byte 1: not UTF-8 (0xfe)"),
    ("the dog\n".encode("utf-16-le"), "line 1, byte 2: not UTF-8 (0x00)"),
    ("the dog\n".encode("utf-16-be"), "line 1, byte 1: not UTF-8 (0x00)"),
    ("Hündin\n".encode("latin-1"), "line 1, byte 2: not UTF-8 (0xfc)"),
    (b"dog\n" + bytes(4096), "line 2, byte 1: not UTF-8 (0x00)"),
    (gzip.compress(b"dog\n" * 999, mtime=0)[:-20], "the gzip data are truncated"),
    (gzip.compress(b"dog\n", mtime=0)[:-1] + b"\1", "the gzip data are damaged"),
    (gzip.compress(b"dog\n", mtime=0)[:12], "the gzip data are truncated; copy the file again"),
    (random.Random(1).randbytes(9999).replace(b"\r", b""), ": not UTF-8 (0x"),
    (b'# by me\n#\nmsgid ""\nmsgstr ""\n', "is a catalogue of messages, not text: write its messages one a line"),
    (b'\xef\xbb\xbfmsgctxt "menu"\nmsgid "Open"\n', "is a catalogue of messages"),
    (bytes.fromhex("de120495") + bytes(4) + b"\1\0\0\0\x1c\0\0\0\n", "is a catalogue of messages"),
    (bytes.fromhex("950412de") + bytes(7) + b"\1", "is a catalogue of messages"),
    (b'<?xml version="1.0"?>\n<!DOCTYPE TS>\n\n<TS version="2.1">\n', "is a catalogue of messages"),
    (b'<?xml version="1.0"?><xliff version="1.2">\n', "is a catalogue of messages"),
    (b"dog\rcat\r", "its lines end in CR: convert it with `tr '\\r' '\\n'`"),
], ids=["UTF-16", "UTF-16, big", "no mark", "no mark, big", "Latin-1", "zeros", "gzip", "gzip, damaged",
        "gzip, short", "binary", "po", "po, no header", "mo", "mo, big", "Qt", "XLIFF", "CR"])  # fmt: skip
def test_other_encodings_are_refused_by_name(tmp_path: Path, content: bytes, advice: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(iter_lines(path))
    assert advice in str(caught.value)
    with path.open("rb") as file, pytest.raises(DataError) as caught:
        list(iter_arriving(file.fileno(), "standard input"))
    assert advice in str(caught.value)


@pytest.mark.parametrize("content", ['# a\na msgid\nmsgid ""\n', "use <TS> or <resources>\n", "#1\n\n# 2\nmsgid = 3\n"])
def test_text_that_only_mentions_catalogues_is_text(tmp_path: Path, content: str) -> None:
    (tmp_path / "text").write_text(content)
    assert list(iter_lines(tmp_path / "text")) == content.splitlines()


COMPRESS = {"gzip": gzip.compress, "xz": lzma.compress, "bzip2": bz2.compress, "zstd": zstandard.compress}


@pytest.mark.parametrize("kind", COMPRESS)
@given(lines=st.lists(st.text("ab ä€", max_size=30)), cuts=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_compressed_files_of_several_parts_are_read(kind: str, lines: list[str], cuts: int) -> None:
    content = "".join(f"{line}\n" for line in ["begin", *lines]).encode()
    step = len(content) // cuts + 1
    data = b"".join(COMPRESS[kind](content[at : at + step]) for at in range(0, len(content), step))
    with TemporaryDirectory() as folder:
        (Path(folder) / "text").write_bytes(data)
        assert list(iter_lines(Path(folder) / "text")) == ["begin", *lines]


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("keep", [0.2, 0.5, 0.99])
def test_compressed_files_that_are_cut_off_are_refused(tmp_path: Path, kind: str, keep: float) -> None:
    data = COMPRESS[kind]("\n".join(map(str, range(99_999))).encode())
    for content in (data[: int(keep * len(data))], data + data[: int(keep * len(data))]):
        (tmp_path / "text").write_bytes(content)
        with pytest.raises(DataError, match=f"{kind} data are truncated"):
            list(iter_lines(tmp_path / "text"))


@pytest.mark.parametrize("kind", COMPRESS)
def test_compressed_files_that_are_damaged_are_refused(tmp_path: Path, kind: str) -> None:
    data = bytearray(COMPRESS[kind]("\n".join(map(str, range(99_999))).encode()))
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    (tmp_path / "text").write_bytes(data)
    with pytest.raises(DataError, match=f"{kind} data are damaged"):
        list(iter_lines(tmp_path / "text"))
    (tmp_path / "text").write_bytes(COMPRESS[kind](b"dog\n") + b"and more, which is not compressed")
    with pytest.raises(DataError, match=f"the {kind} data are damaged"):
        list(iter_lines(tmp_path / "text"))


@contextmanager
def pipe() -> Iterator[tuple[int, BinaryIO]]:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as file:
        yield reading, file
    os.close(reading)


def test_an_open_pipe_yields_its_lines_and_none_for_a_pause() -> None:
    with pipe() as (reading, writing):
        arriving = iter_arriving(reading, "standard input")
        writing.write(b"one\ntwo\nthr")
        assert [next(arriving) for _ in range(3)] == ["one", "two", None]
        writing.write(b"ee\n")
        assert [next(arriving) for _ in range(2)] == ["three", None]
        writing.write(b"four")
        writing.close()
        assert list(arriving) == ["four"]


def test_slowly_arriving_lines_also_yield_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dstransformer.io.text.MAX_WAIT", 0.0)
    with pipe() as (reading, writing):
        writing.write(b"one\n")
        arriving = iter_arriving(reading, "standard input")
        assert next(arriving) == "one"
        writing.write(b"two\n")
        assert [next(arriving) for _ in range(2)] == [None, "two"]


@pytest.mark.parametrize("pack", [bytes, *COMPRESS.values()])
def test_a_pipe_yields_the_same_lines_as_a_file(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    text = "\n".join(["", "x" * 200_000, *(f"line {n}" for n in range(20_000))]).encode()
    (tmp_path / "file").write_bytes(pack(text[:1000]) + pack(text[1000:]))
    with (tmp_path / "file").open("rb") as file:
        arrived = [line for line in iter_arriving(file.fileno(), "file") if line is not None]
    assert arrived == list(iter_lines(tmp_path / "file"))
    assert len(arrived) == 20_002


def test_a_file_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old\n")
    refusal = f"{path} already exists: replace it with --overwrite"
    with pytest.raises(UserError, match=refusal), writing_lines(path, overwrite=False):
        pytest.fail("the block must not run")
    assert path.read_text() == "old\n"
    with writing_lines(path, overwrite=True) as write:
        write("new")
    assert path.read_text() == "new\n"
    with writing_lines(Path("/dev/null"), overwrite=False) as write:
        write("new")
    assert Path("/dev/null").is_char_device()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "out")
    with writing_lines(tmp_path / "link") as write:
        write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "out").read_text() == "new\n"


def test_a_name_ending_in_gz_is_compressed(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        with writing_lines(tmp_path / name) as write:
            write("über")
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()).decode() == "über\n"
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.mark.parametrize("name", ["-", "/dev/stdout", None])
def test_standard_output_has_several_names(
    name: str | None, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    with writing_lines(name, overwrite=False) as write:
        write("über")
    assert capfdbinary.readouterr().out.decode() == "über\n"


def test_a_closed_standard_output_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(StorageError, match="standard output"), writing_lines(None):
        pytest.fail("the block must not run")
