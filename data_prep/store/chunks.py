"""Pieces of a stage: what a worker makes from a few batches of a file of pairs, and leaves in the work folder.

Pieces are cut by rows, so they do not depend on who makes them. A piece is a folder. It is complete or invisible: it is
written under another name and renamed. Its record has the hashes of its files, and whoever is asked for a piece that is
there already only checks these. So a build goes on from the pieces of an interrupted one, and a task may run twice, on
any machines, if a worker is lost.
"""

import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from dstransformer.io.files import file_sha256, is_plain_name
from dstransformer.io.json_text import JsonError, read_json

Report = TypeVar("Report", bound=BaseModel)

#: The folder of the pieces, in that of the unfinished stage. In it is one that is named after the stage's key, so that
#: a task that was given up for lost cannot leave a piece to a stage with other options.
PIECES = "pieces"

#: In the folder of the unfinished stage: its key.
KEY_NAME = "key"

_RECORD_NAME = "piece.json"


class _Record(BaseModel):
    """What a piece holds: the SHA-256 of its files by name, and what the worker reports."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: dict[str, str]
    report: dict[str, object]


def open_pieces(stage: Path, part: int | None = None) -> Path:
    """Make the folder of the pieces of an unfinished stage, or of one part of it, unless it is there; return it."""
    key = stage / KEY_NAME
    name = key.read_text(encoding="utf-8")[:16] if key.exists() else "none"
    root = stage / PIECES / (name if part is None else f"{name}-{part}")
    root.mkdir(parents=True, exist_ok=True)
    return root


def make_piece(folder: Path, kind: type[Report], make: Callable[[Path], Report]) -> Report:
    """Make a piece, unless it is there.

    Args:
        folder: The piece. The folder around it exists.
        kind: The model of its report.
        make: Writes the files of the piece into an empty folder and returns the report.

    Raises:
        OSError: It cannot be written.
    """
    if (found := _load(folder, kind)) is not None:
        return found
    aside = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:12]}")
    aside.mkdir()
    try:
        report = make(aside)
        files = {path.name: file_sha256(path) for path in sorted(aside.iterdir())}
        record = _Record(files=files, report=report.model_dump(mode="json"))
        (aside / _RECORD_NAME).write_text(record.model_dump_json(), encoding="utf-8")
        _install(aside, folder, kind)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return report


def _install(aside: Path, folder: Path, kind: type[BaseModel]) -> None:
    """Rename a piece. If another worker was faster, its piece stays: the bytes are the same."""
    try:
        aside.rename(folder)
    except OSError:
        if _load(folder, kind) is None:
            raise


def _load(folder: Path, kind: type[Report]) -> Report | None:
    """Return the report of a piece that is whole; remove any other."""
    if not folder.exists():
        return None
    try:
        record = _Record.model_validate(read_json(folder / _RECORD_NAME))
        if all(is_plain_name(name) and file_sha256(folder / name) == sha for name, sha in record.files.items()):
            return kind.model_validate(record.report)
    except (OSError, JsonError, ValidationError):
        pass
    doomed = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:12]}")
    with suppress(OSError):
        folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    return None
