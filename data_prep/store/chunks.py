"""Chunks of a stage: what a worker writes for a few batches of a file of pairs, in the work folder.

A file is cut by rows, so chunks do not depend on the workers. A chunk is a folder, written under another name and
renamed when it is complete. Its record has the hashes of its files; a chunk that exists is checked against them and not
written again. So a build resumes from the chunks of an interrupted one, and a task may run twice, on any machines, if a
worker is lost.
"""

import re
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from dstransformer.io.files import file_sha256, is_plain_name
from dstransformer.io.json_text import JsonError, read_json


class Report(BaseModel):
    """What a worker or a stage reports. It is stored as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")


AnyReport = TypeVar("AnyReport", bound=Report)

#: The folder of the chunks, in that of the unfinished stage. Inside it, a folder is named after the stage's key, so
#: that a late task of a lost worker cannot add a chunk to a stage with other options.
CHUNKS = "chunks"

#: In the folder of the unfinished stage: its key.
KEY_NAME = "key"

#: In the folder of a chunk: its record.
RECORD_NAME = "chunk.json"

#: The names of a folder that :func:`open_chunks` returns, and of that of a chunk, complete or not.
ROOT_NAMES = re.compile(r"([0-9a-f]{16}|none)(-\d+)?")
CHUNK_NAMES = re.compile(r"[a-z]+-\d{6,}(\.[0-9a-f]{12})?")


class _ChunkRecord(BaseModel):
    """What a chunk holds: the SHA-256 of its files by name, and the worker's report."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: dict[str, str]
    report: dict[str, object]


def chunk_folder(root: Path, step: str, number: int) -> Path:
    """Return the folder of a chunk that a step of a stage writes; ``step`` is in lower-case letters."""
    return root / f"{step}-{number:06d}"


def open_chunks(stage: Path, part: int | None = None) -> Path:
    """Return the folder of the chunks of an unfinished stage, or of one part of it; create it if need be."""
    key = stage / KEY_NAME
    name = key.read_text(encoding="utf-8")[:16] if key.exists() else "none"
    root = stage / CHUNKS / (name if part is None else f"{name}-{part}")
    root.mkdir(parents=True, exist_ok=True)
    return root


def write_chunk(folder: Path, kind: type[AnyReport], write: Callable[[Path], AnyReport]) -> AnyReport:
    """Write a chunk, unless it exists and is undamaged.

    Args:
        folder: The chunk. Its parent exists.
        kind: The model of its report.
        write: Writes the files of the chunk into an empty folder and returns the report.

    Raises:
        OSError: The chunk cannot be written.
    """
    if (finished := _load(folder, kind)) is not None:
        return finished
    partial = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:12]}")
    partial.mkdir()
    try:
        report = write(partial)
        files = {path.name: file_sha256(path) for path in sorted(partial.iterdir())}
        record = _ChunkRecord(files=files, report=report.model_dump(mode="json"))
        (partial / RECORD_NAME).write_text(record.model_dump_json(), encoding="utf-8")
        try:
            partial.rename(folder)
        except OSError:  # if another worker was faster, its chunk stays: the bytes are the same
            if _load(folder, kind) is None:
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return report


def _load(folder: Path, kind: type[AnyReport]) -> AnyReport | None:
    """Return the report of a complete chunk; remove an incomplete or damaged one."""
    if not folder.exists():
        return None
    try:
        record = _ChunkRecord.model_validate(read_json(folder / RECORD_NAME))
        if all(is_plain_name(name) and file_sha256(folder / name) == sha for name, sha in record.files.items()):
            return kind.model_validate(record.report)
    except (OSError, JsonError, ValidationError):
        pass
    damaged = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:12]}")
    with suppress(OSError):
        folder.rename(damaged)
    shutil.rmtree(damaged, ignore_errors=True)
    return None
