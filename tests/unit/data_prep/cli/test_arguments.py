"""Invalid option values: one error line that names the option and the value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from data_prep.cli import main


@pytest.mark.parametrize(("option", "value", "wanted"), [
    *(("--pairs", value, "not a whole number of 1 or more") for value in ("many", "0", "1e5")),
    *(("--valid-size", value, "not a whole number of 0 or more") for value in ("x", "-1", "")),
    *(("--max-ratio", value, "not a number of 1 or more") for value in ("0.5", "nan", "inf")),
    *(("--character-coverage", value, "not a number from 0.98 to 1") for value in ("99.98%", "0")),
    ("--near-duplicates", "0.4", "not a number from 0.5 to 1"),
    ("--workers", "9" * 30, "too large: give at most 1024"),
    ("--vocab-size", "1" + "0" * 30, "too large: give at most 10000000"),
    ("--seed", str(2**63), "too large"),
    *(("--symbols", value, "space or an invisible character") for value in ("<a b>", "a\u200b")),
    ("--symbols", "", "is empty"),
    ("--symbols", "▁<a>", "has a ▁"),
    ("--symbols", "<unk>", "special piece"),
    ("--symbols", "a" * 101, "101 characters"),
    *(("--tgt-lang", value, "not a language code") for value in ("../x", "", "e", "en de", "日本", "en--de", "a" * 50)),
    *((option, os.fsdecode(b"\xff"), "not a name in UTF-8") for option in ("--out", "--work")),
    ("--out", "", "is a variable unset?"),
])  # fmt: skip
def test_invalid_values_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, wanted: str
) -> None:
    out = [] if option == "--out" else ["--out", str(tmp_path / "corpus")]
    assert main(["build", "--source", "toy", *out, f"{option}={value}"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert f"argument {option}: " in shown.err
    assert wanted in shown.err
    assert len(shown.err) < 220
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("options", "wanted"), [
    ([], "the following arguments are required: COMMAND; see `dst-prep --help`"),
    (["build", "--source", "toy"], "the following arguments are required: --out; see `dst-prep build --help`"),
    (["read", "--source", "tatoeba", "--work", "w"], "argument --source: invalid choice: 'tatoeba'"),
    (["build", "--source", "toy", "--out", "x", "--vocab-siz", "300"], "unrecognized arguments: --vocab-siz"),
])  # fmt: skip
def test_invalid_command_lines_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], wanted: str
) -> None:
    assert main(options) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert wanted in lines[0]


@pytest.mark.parametrize("command", [
    "build --source files", "build --source hub --name a/b", "read --source wmt14", "read --source toy", "mono",
])  # fmt: skip
@pytest.mark.parametrize(("code", "meant"), [("jp", "ja"), ("english", "en"), ("xx", None)])
def test_a_code_of_no_language_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, code: str, meant: str | None
) -> None:
    flag, rest = ("--lang", ["--in", "a"]) if command == "mono" else ("--src-lang", ["--tgt-lang", "de"])
    out = ["--work" if command.startswith("read") else "--out", str(tmp_path / "new")]
    assert main([*command.split(), *rest, flag, code, *out]) == 2
    advice = f"did you mean {meant}?\n" if meant else "write a code such as en, deu or zho_Hans"
    begin = f"dst-prep: error: {flag}: '{code}' is not a language code"
    assert capsys.readouterr().err.startswith(
        f"{begin} (--any-language, in a recipe any_language: true, takes any): {advice}"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("source", "option"), [
    ("files", ["--pair", "fr-en"]), ("toy", ["--src", "text.en"]), ("wmt14", ["--pairs", "5"]), ("toy", ["--offline"]),
])  # fmt: skip
def test_an_option_of_another_source_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, option: list[str]
) -> None:
    assert main(["build", "--source", source, "--out", str(tmp_path / "corpus"), *option]) == 2
    assert f"{option[0]} is not an option of source {source}: leave it out" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
