"""``dst launch-files`` writes the files for clusters, and none over another."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes.forks import REPOSITORY

from dstransformer.cli import main
from dstransformer.cli.launch_files import FILES


def test_the_files_are_those_of_the_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch-files", str(tmp_path / "launch")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "launch" / name) for name in FILES]
    for name in FILES:
        assert (tmp_path / "launch" / name).read_text() == (REPOSITORY / "launch" / name).read_text()


def test_a_file_that_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hostfile").write_text("mine")
    assert main(["launch-files", str(tmp_path)]) == 2
    assert "hostfile exists: name another folder, or remove it" in capsys.readouterr().err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
