"""The examples of ``docs/guide/python.md`` run in order, in a fresh folder and a fresh process."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.launching import run_command

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "python.md"

#: A shell command of the guide, as a notebook would run it.
SHELL = "import subprocess, sys; subprocess.run([sys.executable, '-m', *{words!r}], check=True)"
MODULES = {"dst-prep": "data_prep", "dst": "dstransformer"}


@pytest.mark.slow
def test_the_examples_of_the_guide_run(tmp_path: Path) -> None:
    program = []
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL):
        if language == "sh":
            command, *words = code.replace("\\\n", " ").split()
            program.append(SHELL.format(words=[MODULES[command], *words]))
        else:
            program.append(code)
    (tmp_path / "guide.py").write_text("\n".join(program))
    done = run_command([sys.executable, "guide.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert "('train', 'validation', 'test')" in printed
    assert "128 20" in printed
    assert "en de 20" in printed
    assert any(line.startswith("20 {'loss': ") for line in printed)
    words = re.sub(r"\(\S+|\)", "", printed[-1].removeprefix("['").removesuffix("']"))
    assert words.split() == ["the", "dog", "likes", "songs"]
