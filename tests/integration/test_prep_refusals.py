"""``dst-prep`` refuses bad input and unusable disks with one error line, and leaves no corpus behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.data.prep import WriteText, build, refuses
from support.faults.disk import mounted


@pytest.mark.parametrize(("files", "wanted"), [
    ({"src.txt": lambda text: text.replace(b" 34.", b" \xf6 34.", 1)}, "src.txt, line 35, byte "),
    ({"src.txt": lambda _: b" \n" * 5, "tgt.txt": lambda _: b" \n" * 5}, "cleaning left nothing of 5 (empty 5)"),
])  # fmt: skip
def test_bad_text_is_refused_and_leaves_no_corpus(
    tmp_path: Path,
    text: WriteText,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, Callable[[bytes], bytes]],
    wanted: str,
) -> None:
    options, out = text(), tmp_path / "corpus"
    for name, spoil in files.items():
        path = tmp_path / "text" / name
        path.write_bytes(spoil(path.read_bytes()))
    assert wanted in refuses(capsys, build(*options, "--out", out))
    left = {path.name for path in tmp_path.iterdir()} - {"text"}
    assert left == ({"corpus.work"} if "cleaning" in wanted else set())
    assert not list(tmp_path.glob("corpus.work/*.partial"))


def test_bad_options_are_refused(tmp_path: Path, text: WriteText, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "corpus"
    for options, wanted in (
        (["--source", "files", "--src-lang", "en"], "--tgt-lang is missing"),
        (["--source", "toy", "--src-lang", "fr"], "the toy source has English and German, not fr-de"),
        ([*text(), "--shard-rows", "9000000"], "more than 2^31 tokens"),
    ):
        assert wanted in refuses(capsys, build(*options, "--out", out))
    assert {path.name for path in tmp_path.iterdir()} == {"text"}


@pytest.mark.parametrize("small_disk", ["1m"], indirect=True)
def test_a_full_disk_leaves_nothing(text: WriteText, small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refuses(capsys, build(*text(40_000), "--out", small_disk / "corpus"), code=1)
    assert "No space left on device" in message
    assert list(small_disk.iterdir()) == []


def test_unwritable_folders_are_refused(tmp_path: Path, text: WriteText, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert "is not a folder" in refuses(capsys, build(*text(), "--out", tmp_path / "file" / "corpus"))
    if os.geteuid():
        (tmp_path / "locked").mkdir(mode=0o555)
        assert "Permission denied" in refuses(capsys, build(*text(), "--out", tmp_path / "locked" / "corpus"))
    with mounted(tmp_path / "disk", "ro,size=1m") as disk:
        assert "Read-only file system" in refuses(capsys, build(*text(), "--out", disk / "corpus"))
