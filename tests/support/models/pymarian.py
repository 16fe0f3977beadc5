"""Marian itself, from the package index, in an environment of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


def marian_python() -> Path:
    """The Python that has pymarian; skips the test without one."""
    python = Path(os.environ.get("DST_PYMARIAN", REPOSITORY / ".venv-marian" / "bin" / "python"))
    if not python.exists():
        pytest.skip("no pymarian: python -m venv .venv-marian, then .venv-marian/bin/pip install pymarian")
    return python


def marian(*arguments: str | Path, cwd: Path) -> str:
    """Run Marian, and return what it prints."""
    command = [str(marian_python()), "-m", "pymarian", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def decode(lines: Sequence[str], folder: Path, *options: str) -> tuple[list[str], list[float]]:
    """Marian's translations of lines, and their log-probabilities."""
    (folder / "input").write_text("\n".join(lines) + "\n", encoding="utf-8")
    search = ["--n-best", "--max-length", "200", "--cpu-threads", "1", "--quiet", "-w", "300"]
    printed = marian("decode", "-i", "input", *search, *options, cwd=folder)
    texts, scores = [""] * len(lines), [0.0] * len(lines)
    seen = set()
    for line in printed.splitlines():
        number, text, score, _ = (part.strip() for part in line.split("|||"))
        if number not in seen:  # the best one comes first
            seen.add(number)
            texts[int(number)], scores[int(number)] = text, float(score.removeprefix("F0="))
    assert len(seen) == len(lines)
    return texts, scores
