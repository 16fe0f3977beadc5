"""A small file system for one run, which can be made full, read-only or absent for a while. Linux, as root."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

_SIZE = "48m"


class Disk:
    """A folder for a run, on a file system of its own where that is permitted.

    Attributes:
        path: The folder.
        is_real: Whether faults can be injected.

    Args:
        place: Where to mount it; is created.
    """

    def __init__(self, place: Path) -> None:
        self._store, self.path = place / "store", place / "disk"
        for folder in (self._store, self.path):
            folder.mkdir(parents=True)
        self.is_real = _mount("-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(self._store))
        if self.is_real:
            self.is_real = _mount("--bind", str(self._store), str(self.path))

    def fail(self, kind: str) -> bool:
        """Make the disk full, read-only or vanish. Returns whether that could be done."""
        if not self.is_real:
            return False
        if kind == "full-disk":
            return self._fill()
        if kind == "vanished":
            return _run("umount", "-l", str(self.path))
        # A file system with open files cannot become read-only, but what is mounted above it can.
        return _mount("--bind", str(self.path), str(self.path)) and _mount("-o", "remount,bind,ro", str(self.path))

    def heal(self, kind: str) -> None:
        """End the fault."""
        if kind == "full-disk":
            (self._store / "ballast").unlink(missing_ok=True)
        elif kind == "vanished":
            shutil.rmtree(self.path, ignore_errors=True)  # what was written into the empty mount point
            self.path.mkdir(exist_ok=True)
            _mount("--bind", str(self._store), str(self.path))
        else:
            _run("umount", "-l", str(self.path))

    def close(self) -> None:
        """Unmount it; the content is lost."""
        if self.is_real:
            _run("umount", "-l", str(self.path))
        _run("umount", "-l", str(self._store))

    def _fill(self) -> bool:
        with suppress(OSError), (self._store / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        return os.statvfs(self._store).f_bavail == 0


def _mount(*options: str) -> bool:
    return _run("mount", *options)


def _run(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
