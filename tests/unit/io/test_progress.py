from __future__ import annotations

import pytest

from dstransformer.io.progress import reporting


def test_without_a_terminal_progress_is_printed_as_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dstransformer.io.progress.INTERVAL", 0.0)
    with reporting("sentences", 2000) as progress:
        progress(400)
        progress(1600)
    with reporting("lines") as progress:
        progress(3)
    output, errors = capsys.readouterr()
    first, second, third = errors.splitlines()
    assert first.startswith("dst: 400 of 2,000 sentences, ")
    assert second.startswith("dst: 2,000 of 2,000 sentences, ")
    assert second.endswith(" a second")
    assert third.startswith("dst: 3 lines, ")
    assert output == ""


def test_short_tasks_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting("sentences", 2) as progress:
        progress(2)
    assert capsys.readouterr() == ("", "")
