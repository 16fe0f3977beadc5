"""``dst-prep mono``: text of one language, cleaned and deduplicated."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from support.data.prep import GERMAN, refuses, sentence

from data_prep import mono
from data_prep.cli import main
from data_prep.stages import clean
from dstransformer import __version__

LINES = [sentence(number, GERMAN) for number in range(40)]


def run(*arguments: str | Path) -> int:
    return main(["mono", "--lang", "de", "--workers", "1", *map(str, arguments)])


def record_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.with_name(f"{out.name}.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.de"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def test_the_rules_of_pairs_clean_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "text.de", tmp_path / "out.de"
    kept = ["Ein alter Hund sieht die Katze.", "Die Katze sieht\u00a0 den\u200b Hund."]
    dropped = ["", kept[0], "Zu kurz.", "Это предложение не немецкое.", "zu lang " * 10]
    text.write_text("\n".join([*kept, *dropped]) + "\n", encoding="utf-8")
    assert run("--in", text, "--out", out, "--min-words", "3", "--max-words", "15", "--min-script", "0.5") == 0
    assert out.read_text(encoding="utf-8") == "Ein alter Hund sieht die Katze.\nDie Katze sieht den Hund.\n"
    record = record_of(out)
    assert record["dropped"] == {"empty": 1, "too_long": 1, "too_short": 1, "script": 1, "duplicate": 1}
    assert (record["read"], record["kept"]) == (7, 2)
    assert record["examples"]["too_short"] == ["Zu kurz."]
    shown = capsys.readouterr().out
    assert f"{out}: 2 sentences in de; {out}.json says what they were made from" in shown
    assert "dropped: too_short" in shown
    assert "length_ratio" not in shown


def test_the_record_says_what_a_text_was_made_from(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out.de.gz"
    assert run("--in", text, "--out", out) == 0
    record = record_of(out)
    assert record["format_version"] == mono.FORMAT_VERSION
    assert record["lang"] == "de"
    assert record["text_sha256"] == hashlib.sha256(gzip.decompress(out.read_bytes())).hexdigest()
    content = text.read_bytes()
    assert record["inputs"] == [
        {"name": "text.de", "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    ]
    assert record["options"] == {
        "lang": "de", "in": "text.de", "normalise": "nfc", "max_words": 250, "punctuation": "keep",
        "min_script": 0.0, "min_language": 0.0, "dedup": True,
    }  # fmt: skip
    assert record["versions"]["dstransformer"] == __version__


def test_compressed_files_and_members_follow_each_other(tmp_path: Path, text: Path) -> None:
    for number, (ending, compress) in enumerate((
        ("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress), ("zst", zstandard.compress),
    )):  # fmt: skip
        content = "".join(f"{line} {number}\n" for line in LINES).encode()
        (tmp_path / f"part{number}.de.{ending}").write_bytes(compress(content))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("news.de", "Aus dem Archiv.\n")
    out = tmp_path / "out.de"
    assert run("--in", tmp_path / "part*.de.*", text, f"{tmp_path}/a.zip::news.de", "--out", out) == 0
    found = out.read_text(encoding="utf-8").splitlines()
    assert found == [f"{line} {number}" for number in range(4) for line in LINES] + LINES + ["Aus dem Archiv."]


def test_near_duplicates_and_held_out_sentences_are_dropped(tmp_path: Path, text: Path) -> None:
    held_out, out = tmp_path / "test.de", tmp_path / "out.de"
    held_out.write_text(f"{LINES[3]}\n", encoding="utf-8")
    long = "Der alte Hund sieht die rote Katze auf der neuen Bank am See"
    text.write_text(f"{LINES[3]}\n{long}.\n{long}!\n", encoding="utf-8")
    assert run("--in", text, "--held-out", held_out, "--near-duplicates", "0.8", "--out", out) == 0
    assert out.read_text(encoding="utf-8") == f"{long}.\n"
    assert record_of(out)["dropped"] == {"empty": 0, "too_long": 0, "overlap": 1, "duplicate": 0, "near_duplicate": 1}
    assert record_of(out)["options"]["held_out"] == "test.de"


@pytest.mark.parametrize("option", [(), ("--min-language", "0.5")])
def test_workers_do_not_change_the_text(tmp_path: Path, option: tuple[str, ...]) -> None:
    text = tmp_path / "text.de"
    text.write_text("".join(f"{sentence(number % 9000, GERMAN)}\n" for number in range(20_000)), encoding="utf-8")
    for workers in ("1", "3"):
        assert run("--in", text, "--out", tmp_path / workers, "--workers", workers, *option) == 0
    assert (tmp_path / "1").read_bytes() == (tmp_path / "3").read_bytes()


def test_an_interrupted_command_leaves_no_text_and_resumes(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.de"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(clean, "join_pairs", interrupt)
        assert run("--in", text, "--out", out) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.de.work", "text.de"]
    with monkeypatch.context() as patch:  # while the text is written
        patch.setattr(mono, "_write_sentences", interrupt)
        assert run("--in", text, "--out", out) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.de.work", "text.de"]
    capsys.readouterr()
    assert run("--in", text, "--out", out) == 0
    assert "clean: finished before, reused" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.de", "out.de.json", "text.de"]


def test_a_rule_that_would_have_to_guess_is_refused_before_the_text_is_read(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run("--lang", "xx", "--any-language", "--min-script", "0.5", "--in", text, "--out", tmp_path / "out.de")
    assert "--min-script needs the script of xx, which is not known" in refuses(capsys, status)
    assert [path.name for path in tmp_path.iterdir()] == ["text.de"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["--in", "text.de"], "the following arguments are required: --out"),
    (["--in", "text.de", "--out", "-"], "--out -: name a file; its record is written beside it"),
    (["--in", "text.de", "--out", "text.de", "--overwrite"], "text.de is an input of this command"),
    (["--in", "text.de", "--out", "out.de.zst"], "the text is written plain, or gzipped to a name in .gz"),
    (["--in", "text.de", "--out", "old.de"], "old.de already exists: replace it with --overwrite"),
    (["--in", "text.de", "--out", "gone/out.de"], "gone is not a folder; make it first"),
    (["--in", "pairs.tsv", "--out", "out.de"], "pairs.tsv is not plain text: write one sentence a line"),
    (["--in", "a.zip", "--out", "out.de"], "a.zip is an archive: name the member to read, a.zip::MEMBER"),
    (["--in", "text.de", "--out", "out.de", "--max-ratio", "3"], "unrecognized arguments: --max-ratio"),
    (["--in", "text.de", "--out", "out.de", "--min-words", "50"], "nothing of 40 (too_short 40): lower --min-words"),
    (["--in", "text.de", "--out", "out.de", "--work", "text.de"], "--work .*text.de is not a folder"),
])  # fmt: skip
def test_unusable_input_is_refused_in_one_line(
    tmp_path: Path, text: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name, content in (("pairs.tsv", b"a\tb\n"), ("old.de", b"x")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "a.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    status = run(*arguments)
    line = refuses(capsys, status, code=1 if "gone/" in " ".join(arguments) else 2)
    assert re.search(re.escape(message).replace(r"\.\*", ".*"), line)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".work"} == before


def test_the_language_is_required(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refuses(capsys, main(["mono", "--in", str(text), "--out", str(text.with_name("out"))]))
    assert "the following arguments are required: --lang; see `dst-prep mono --help`" in line
