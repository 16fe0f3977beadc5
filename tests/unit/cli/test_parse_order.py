"""Arguments in any order, and bytes that are no text."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstransformer.cli.program import run


def test_a_file_may_follow_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.en").write_text("A dog.\n")
    missing = str(tmp_path / "no-bundle")
    for arguments in (
        [missing, "--beam", "2", str(tmp_path / "text.en")],
        [missing, str(tmp_path / "text.en"), "--beam", "2"],
        ["--beam", "2", missing, str(tmp_path / "text.en")],
    ):
        assert run(["translate", *arguments]) == 2
        assert missing in capsys.readouterr().err
    assert run(["translate", missing, "--beam", "2", "one", "two"]) == 2
    assert "unrecognized arguments: one two; see `dst translate --help`" in capsys.readouterr().err
    assert run(["translate", missing, "one", "--bream", "2"]) == 2
    assert "--bream" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--prefix", "Zwei \udcff"], ["--format", "pairs", "--tag", "\udcff"]])
def test_options_that_are_no_text_are_refused(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["translate", "bundle", *option]) == 2
    assert "is not UTF-8: convert it" in capsys.readouterr().err
