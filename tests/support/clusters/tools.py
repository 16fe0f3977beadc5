"""Finds the system programs that cluster tests need. Nothing is installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

import pytest


def find_tools(names: Sequence[str], packages: str) -> dict[str, str]:
    """Find programs; return their paths by name. Skips the test without root, or if one is missing.

    Args:
        names: The names of the programs.
        packages: The Debian packages that contain them.
    """
    if os.geteuid() != 0:
        pytest.skip("a cluster on one machine needs root")
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    found = {name: shutil.which(name, path=path) for name in names}
    missing = [name for name, place in found.items() if place is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: apt-get install {packages}")
    return {name: str(place) for name, place in found.items()}
