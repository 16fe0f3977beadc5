"""Finds the system programs that cluster tests need. Nothing is installed; tests are skipped if one is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence


class UnavailableError(Exception):
    """This machine cannot run a cluster; the message says why."""


def find_tools(names: Sequence[str], packages: str) -> dict[str, str]:
    """Find programs; return their paths by name.

    Args:
        names: The names of the programs.
        packages: The Debian packages that contain them.

    Raises:
        UnavailableError: A program is missing, or this process does not run as root.
    """
    if os.geteuid() != 0:
        raise UnavailableError("a cluster on one machine needs root")
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    found = {name: shutil.which(name, path=path) for name in names}
    missing = [name for name, place in found.items() if place is None]
    if missing:
        raise UnavailableError(f"no {', '.join(missing)}: apt-get install {packages}")
    return {name: str(place) for name, place in found.items()}
