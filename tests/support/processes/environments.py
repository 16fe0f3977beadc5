"""Environments of their own for other systems, whose packages do not go with ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.processes.forks import REPOSITORY


def side_python(name: str, package: str) -> Path:
    """The Python of ``.venv-NAME``, or the one that ``DST_PACKAGE`` names; skips the test where there is none."""
    python = Path(os.environ.get(f"DST_{package.upper()}", REPOSITORY / f".venv-{name}" / "bin" / "python"))
    if not python.exists():
        pytest.skip(f"no {package}: python -m venv .venv-{name}, then .venv-{name}/bin/pip install {package}")
    return python
