"""Damages the newest checkpoint of a run, as a disk does."""

from __future__ import annotations

from pathlib import Path

from benchmarks.resilience.faults.plan import Fault


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
