"""Marian itself, from the package index, in an environment of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from support.processes.environments import side_python


def marian_python() -> Path:
    """The Python that has pymarian; skips the test without one."""
    return side_python("marian", "pymarian")


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
