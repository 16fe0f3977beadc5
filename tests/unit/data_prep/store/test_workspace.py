"""Work folders that are damaged, swapped or missing, and other slips that only show between the stages."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.data.corpora import write_corpus
from support.data.prep import build, refuses, without_vocab

from data_prep.cli import main


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_damaged_work_folder_is_refused(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    at = options.index("--vocab-size")
    assert main(["read", "--work", "work", *options[:at], *options[at + 2 :]]) == 0
    text = Path("work/read/train.arrow")
    whole = text.read_bytes()
    for damaged in (whole[: len(whole) // 2], b""):
        text.write_bytes(damaged)
        message = refuses(capsys, main(["clean", "--work", "work", "--workers", "1"]))
        assert "train.arrow is damaged or gone" in message
        assert "remove work/read, then run `dst-prep read` or `dst-prep build` again" in message
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    text.write_bytes(changed)
    assert "train.arrow is damaged or gone" in refuses(capsys, main(["clean", "--work", "work", "--workers", "1"]))
    text.write_bytes(whole)
    assert main(["clean", "--work", "work"]) == main(["vocab", "--work", "work", "--vocab-size", "330"]) == 0
    Path("work/vocab/tokenizer.model").write_text("garbage")
    message = refuses(capsys, main(["encode", "--work", "work", "--out", "out"]))
    assert "tokenizer.model is damaged or gone: remove work/vocab" in message


def test_swapped_and_changed_tables_are_refused(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    assert main(["read", "--work", "work", *without_vocab(options)]) == main(["clean", "--work", "work"]) == 0
    assert main(["vocab", "--work", "work", "--vocab-size", "330"]) == 0
    Path("work/read/validation.arrow").write_bytes(Path("work/clean/train.arrow").read_bytes())
    capsys.readouterr()
    message = refuses(capsys, main(["encode", "--work", "work", "--out", "out"]))
    assert "validation.arrow is damaged or gone: remove work/read" in message


def test_a_work_folder_that_is_a_file_is_named(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    message = refuses(capsys, main(["encode", "--work", options[-1], "--out", "out"]))
    assert f"--work {options[-1]} is not a folder" in message


def test_held_out_text_without_any_text_is_refused(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    Path(options[options.index("--valid-tgt") + 1]).write_text("\n" * 20)
    message = refuses(capsys, build(*options, "--out", "out"))
    assert "all 20 references of the validation set of files are empty" in message


def test_files_that_datasets_needs_are_missed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", [([5, 6], [7]), ([8], [9])])
    (corpus / "dataset_dict.json").unlink()
    assert "dataset_dict.json is missing" in refuses(capsys, main(["verify", str(corpus)]))


def test_a_stage_without_a_work_folder_creates_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--work work does not exist" in refuses(capsys, main(["clean", "--work", "work"]))
    assert not Path("work").exists()
