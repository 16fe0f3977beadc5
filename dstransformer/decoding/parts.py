"""Translate a long text in parts: with several processes, and resumable after an interruption."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dstransformer.decoding.formats import Request, take_prefixes, warn_of_prefixes_left
from dstransformer.decoding.texts import BUFFER_LINES
from dstransformer.distributed.launcher import Processes
from dstransformer.errors import DataError, DstError, UserError, check_format_version, counted
from dstransformer.io.files import hold_lock, replace_file, storage_errors, write_durably
from dstransformer.io.json_text import read_json
from dstransformer.io.progress import Advance
from dstransformer.io.text import already_exists, check_output_file, iter_lines, writing_lines

if TYPE_CHECKING:
    from dstransformer.decoding.translator import TextDecoder

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1

JOB_NAME = "job.json"

#: A process has at least this many parts, if there are enough lines, so that all end at about the same time.
PARTS_PER_PROCESS = 8

#: Minimum number of lines of a part.
MIN_LINES = 64

#: Seconds between two checks for the parts of other processes.
POLL_SECONDS = 0.5

#: Seconds of waiting for them between two warnings.
WARN_SECONDS = 60.0

_FULL = "make room; the same command resumes from the finished parts"


def translate_in_parts(
    file: str,
    output: str,
    load: Callable[[], TextDecoder],
    request: Request,
    processes: Processes,
    *,
    extra: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Advance | None = None,
) -> int:
    """Translate a file in parts of some thousand lines, and put them together in order.

    The finished parts are kept in ``OUTPUT.parts``, on a disk that all processes share. The same command after an
    interruption makes only those that are missing, with any number of processes. Part ``k`` belongs to process ``k``
    modulo their number; rank 0 puts the parts together when all are there and removes the folder. A process that
    starts later has nothing to do.

    Args:
        file: Text, one sentence per line, plain or gzipped.
        output: The file to make.
        load: Builds the translator; called once the files have been checked.
        request: What is written for each line.
        processes: This process and the number of all.
        extra: Whatever else determines the content of the parts, as plain data.
        overwrite: Replace ``output`` if it exists.
        progress: Called with the number of lines just translated by this process, or found in finished parts.

    Returns:
        The number of lines of the file; fewer if the others had finished before this process read it.

    Raises:
        UserError: The output exists or cannot be made, or a file is a pipe, or the parts belong to another command, or
            another process makes them.
        DataError: The input cannot be read or is not UTF-8, or has changed.
        StorageError: A part cannot be written.
    """
    folder = _PartsFolder(file, request.prefix_file, output, processes, _file_identity(output))
    folder.check()
    if folder.earlier_output is not None and not overwrite:
        if processes.rank:  # rank 0 refuses it, or has just made it
            return 0
        raise already_exists(output)
    next(iter_lines(file))  # a file that cannot be read fails before the model is loaded
    translator = load()
    lines, late = 0, False
    try:
        with storage_errors(str(folder.path), full=_FULL), folder.locked():
            job = _Job.describe(folder, translator, request, extra or {}).load_or_create(folder)
            if not (late := folder.is_finished()):
                parts, lines = _make_parts(folder, job, translator, request, progress)
            if processes.rank == 0:
                _join(folder, parts, overwrite=overwrite)
    except DstError:
        if not (late := folder.is_finished()):  # else the folder has vanished meanwhile
            raise
    if late:  # this process may have made the folder again
        folder.clear()
    return lines


@dataclasses.dataclass(frozen=True)
class _PartsFolder:
    """The folder ``OUTPUT.parts`` as one process uses it, with the files of the command.

    Attributes:
        text: The text.
        prefixes: The file of prefixes, if there is one.
        output: The file that rank 0 makes of the parts.
        processes: The process.
        earlier_output: The identity of the output when the process began; None if there was none.
    """

    text: str
    prefixes: str | None
    output: str
    processes: Processes
    earlier_output: tuple[int, int, int] | None

    @property
    def inputs(self) -> list[str]:
        """The files that are read."""
        return [self.text] if self.prefixes is None else [self.text, self.prefixes]

    @property
    def path(self) -> Path:
        """The folder of the parts."""
        return Path(f"{self.output}.parts")

    def part(self, number: int) -> Path:
        """The file of a part."""
        return self.path / f"part-{number:08d}"

    def check(self) -> None:
        """Check, before the work, what would fail after it.

        Raises:
            UserError: A file is a pipe or a device, or the output is an input or would be part of a product.
            StorageError: The output is a folder, or its folder does not exist.
        """
        for path in (*self.inputs, self.output):
            if Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir():
                raise UserError(
                    f"{path} is a pipe or a device: several processes and --resume read a text several times, and put "
                    "the translations together at the end; name files"
                )
        check_output_file(self.output, self.inputs)

    def is_finished(self) -> bool:
        """Whether rank 0 has made the output. Then no part was missing, and the folder is gone or going."""
        return self.processes.rank > 0 and _file_identity(self.output) != self.earlier_output

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and lock it against the same rank of another command."""
        self.path.mkdir(exist_ok=True)
        busy = f"another command is making {self.path} ({{owner}}): wait for it, or give another --output"
        with hold_lock(self.path / f".rank-{self.processes.rank}.lock", busy):
            yield

    def clear(self) -> None:
        """Remove what commands have made in the folder, killed ones too, and the folder if nothing else is in it."""
        part = f"part-{'[0-9]' * 8}"
        for pattern in (part, f".{part}.*.partial", JOB_NAME, f".{JOB_NAME}.*", ".rank-*.lock"):
            for path in self.path.glob(pattern):
                with suppress(OSError):  # another process removes it too
                    path.unlink()
        with suppress(OSError):
            self.path.rmdir()


def _file_identity(path: str) -> tuple[int, int, int] | None:
    """What distinguishes a file from one that replaces it; None if there is none."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _make_parts(
    folder: _PartsFolder, job: _Job, translator: TextDecoder, request: Request, progress: Advance | None
) -> tuple[int, int]:
    """Make the missing parts of this process; returns the number of all parts and of all lines."""
    processes = folder.processes
    prefixes = request.iter_prefixes()
    count = 0
    for number, (first, lines) in enumerate(job.iter_parts(folder.text, ends=request.keeps_ends)):
        count += len(lines)
        asked = request.arguments()
        if prefixes is not None:
            asked["prefixes"] = take_prefixes(prefixes, len(lines), first)
        path = folder.part(number)
        if path.exists():
            if progress is not None and processes.rank == 0:
                progress(len(lines))
        elif number % processes.world_size == processes.rank:
            if folder.is_finished():
                break
            try:
                outputs = translator.search(lines, progress=progress, first=first, **asked)
                rendered = [
                    text
                    for line_number, (line, of_line) in enumerate(zip(lines, outputs, strict=True), first)
                    for text in request.render(line_number, line, request.choose(of_line))
                ]
                end = "" if request.keeps_ends else "\n"
                replace_file(path, "".join(f"{text}{end}" for text in rendered))
            except DstError as error:  # only this process may have it; all raise those of the files and options
                error.rank = processes.rank
                raise
    if prefixes is not None and request.prefix_file is not None and processes.rank == 0:
        warn_of_prefixes_left(prefixes, count)
    return number + 1, count


def _join(folder: _PartsFolder, parts: int, *, overwrite: bool) -> None:
    """Wait for the parts of all processes and put them together."""
    paths = list(map(folder.part, range(parts)))
    began = time.monotonic()
    missing = [path for path in paths if not path.exists()]
    while missing:
        if time.monotonic() - began > WARN_SECONDS:
            logger.warning(
                "waiting for %s of other processes in %s; if these have ended, give the same command again",
                counted(len(missing), "part"), folder.path,
            )  # fmt: skip
            began = time.monotonic()
        time.sleep(POLL_SECONDS)
        missing = [path for path in missing if not path.exists()]
    with writing_lines(folder.output, overwrite=overwrite, inputs=folder.inputs) as write:
        for path in paths:
            write(path.read_bytes().decode(), "")
    folder.clear()


@dataclasses.dataclass(frozen=True)
class _Job:
    """The text and the settings that the parts in a folder belong to.

    Attributes:
        input: Size and time of change of the text, and of the file of prefixes if there is one.
        asked: What determines the content of the parts: the request, the search settings, the models.
        part_lines: Lines of a part; 0 until it is known.
    """

    input: dict[str, Any]
    asked: dict[str, Any]
    part_lines: int = 0

    @classmethod
    def describe(
        cls, folder: _PartsFolder, translator: TextDecoder, request: Request, extra: Mapping[str, Any]
    ) -> _Job:
        stamps: list[dict[str, Any]] = []
        for path in folder.inputs:
            try:
                status = Path(path).stat()
            except OSError as error:
                raise DataError(f"cannot read {path}: {error.strerror}") from None
            stamps.append({"size": status.st_size, "changed_ns": status.st_mtime_ns})
        settings = translator.describe()
        settings.pop("device")
        settings.pop("batch_tokens")
        asked = {**dataclasses.asdict(request), **settings, **extra, "models": translator.identity}
        text, *prefixes = stamps
        return cls({**text, **({"prefixes": prefixes[0]} if prefixes else {})}, json.loads(json.dumps(asked)))

    def load_or_create(self, folder: _PartsFolder) -> _Job:
        """Read the job of the folder, or write this one if there is none yet.

        Raises:
            UserError: The folder has a job with other settings.
            DataError: A file has changed since the job was begun.
        """
        path = folder.path / JOB_NAME
        if not path.exists():
            parts = PARTS_PER_PROCESS * folder.processes.world_size
            lines = sum(1 for _ in islice(iter_lines(folder.text), parts * BUFFER_LINES))
            job = dataclasses.replace(self, part_lines=min(max(-(-lines // parts), MIN_LINES), BUFFER_LINES))
            temporary = folder.path / f".{JOB_NAME}.{folder.processes.rank}"
            write_durably(temporary, json.dumps({"format_version": FORMAT_VERSION, **dataclasses.asdict(job)}) + "\n")
            try:
                os.link(temporary, path)  # only one process succeeds
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links
                temporary.replace(path)
            temporary.unlink(missing_ok=True)
        stored = _read_job(path)
        for name in {**self.asked, **stored.asked}:
            before, value = stored.asked.get(name), self.asked.get(name)
            if before != value:
                raise UserError(
                    f"{folder.path} was begun with {name} {before}, not {value}: repeat that command, "
                    f"or remove {folder.path} to begin again"
                )
        if stored.input != self.input:
            same_text = all(stored.input.get(name) == self.input[name] for name in ("size", "changed_ns"))
            changed = folder.inputs[-1 if same_text else 0]
            raise DataError(f"{changed} has changed since {folder.path} was begun: remove {folder.path} to begin again")
        return stored

    def iter_parts(self, file: str, *, ends: bool) -> Iterator[tuple[int, list[str]]]:
        """The number of the first line and the lines of each part."""
        lines = iter_lines(file, ends=ends)
        first = 1
        while part := list(islice(lines, self.part_lines)):
            yield first, part
            first += len(part)


def _read_job(path: Path) -> _Job:
    try:
        stored = read_json(path)
        check_format_version(stored.pop("format_version"), FORMAT_VERSION, path)
        return _Job(**stored)
    except (ValueError, TypeError, AttributeError, KeyError):
        raise DataError(f"{path} is damaged: remove {path.parent} to begin again") from None
