"""Programs of the system that tests of clusters need. Nothing is installed: where one is missing, the test says so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence


class UnavailableError(Exception):
    """Why this machine cannot play a cluster."""


def find_tools(names: Sequence[str], packages: str) -> dict[str, str]:
    """Where these programs are.

    Args:
        names: Of the programs.
        packages: Debian's packages that hold them.

    Raises:
        UnavailableError: One is missing, or this is not root.
    """
    if os.geteuid() != 0:
        raise UnavailableError("a cluster on one machine needs root")
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    found = {name: shutil.which(name, path=path) for name in names}
    missing = [name for name, place in found.items() if place is None]
    if missing:
        raise UnavailableError(f"no {', '.join(missing)}: apt-get install {packages}")
    return {name: str(place) for name, place in found.items()}
