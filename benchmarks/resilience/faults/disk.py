"""Faults of a disk: a small file system that fails for a while (Linux, as root), and a damaged checkpoint."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from benchmarks.resilience.faults.plan import Fault

_SIZE = "48m"


class Disk:
    """A folder for a run, on a small file system of its own where that is permitted.

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


def damage_newest(run: Path, fault: Fault) -> Path | None:
    """Flip a bit of a file of the newest checkpoint, cut the file off, or remove it.

    Returns:
        The file; None if there is no older checkpoint to fall back to, so that nothing was done.
    """
    checkpoints = sorted((run / "checkpoints").glob("step-*"))
    if len(checkpoints) < 2:
        return None
    files = sorted(path for path in checkpoints[-1].rglob("*") if path.is_file())
    path = files[fault.choice % len(files)]
    if fault.kind == "missing-file":
        path.unlink()
        return path
    content = path.read_bytes()
    place = min(int(fault.share * len(content)), len(content) - 1)
    if fault.kind == "truncated-file":
        path.write_bytes(content[:place])
        return path
    if path.name == "manifest.json":
        place = _in_a_value(content, place)
    flipped = content[place] ^ 1 << (fault.choice >> 8) % 8
    path.write_bytes(content[:place] + bytes([flipped]) + content[place + 1 :])
    return path


def _in_a_value(manifest: bytes, place: int) -> int:
    """A place that means something: a digit, at or after a place. A blank between two values means nothing."""
    places = [number for number, byte in enumerate(manifest) if chr(byte).isdigit()]
    own_name = manifest.rfind(b'"sha256"')
    places = [number for number in places if not own_name < number < own_name + 8]
    return next((number for number in places if number >= place), places[-1])


def _mount(*options: str) -> bool:
    return _run("mount", *options)


def _run(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
