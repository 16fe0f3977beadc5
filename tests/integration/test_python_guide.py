"""The examples of ``docs/guide/python.md`` run in order, in a fresh folder; the last section in a second process."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.processes.launching import run_command

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "python.md"

#: A shell command of the guide, as a notebook would run it.
SHELL = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'data_prep', *{words!r}], check=True)"


def run_examples(text: str, folder: Path) -> list[str]:
    """The lines that the examples in a part of the guide print."""
    program = []
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language == "sh":
            command, *words = code.split()
            assert command == "dst-prep"
        program.append(code if language == "python" else SHELL.format(words=words))
    (folder / "guide.py").write_text("\n".join(program))
    done = run_command([sys.executable, "guide.py"], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_examples_of_the_guide_run(tmp_path: Path) -> None:
    translating, parsing = GUIDE.read_text().split("## Parse\n")
    printed = run_examples(translating, tmp_path)
    assert "('train', 'validation', 'test')" in printed
    assert "128 20" in printed
    assert "en de 20" in printed
    assert any(line.startswith("20 {'loss': ") for line in printed)
    tree = run_examples(parsing, tmp_path)[-1].removeprefix("['").removesuffix("']")
    assert re.sub(r"\(\S+|\)", "", tree).split() == ["the", "dog", "likes", "songs"]
