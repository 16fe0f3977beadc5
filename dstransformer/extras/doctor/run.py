"""Checks of a run: why it ended, how far it came, and whether what it left is intact."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dstransformer.config import Config
from dstransformer.config.loading import read_config
from dstransformer.errors import DataError, DstError, UserError, counted
from dstransformer.extras.doctor.causes import PastRun, find_cause, read_past_run
from dstransformer.extras.doctor.finding import Finding, Level, collect
from dstransformer.extras.doctor.machine import GIB, describe_room
from dstransformer.extras.doctor.store import check_tracking
from dstransformer.io.files import lock_owner
from dstransformer.io.json_text import read_record
from dstransformer.io.products import BUNDLE_FILES, RUN_LOCK, is_run
from dstransformer.tracking.metrics_log import METRICS_NAME, MetricsLine, read_records
from dstransformer.training.checkpoints.integrity import MANIFEST, check_manifest, complete_checkpoints, verify_files

_AGAIN = "run the same command to write it again"


@dataclass
class RunFolder:
    """A run folder, read once.

    Attributes:
        path: The folder.
        owner: The process that trains in it; None if none does.
        past: What the last run in it has recorded.
        config: The configuration; None if it cannot be read.
        lines: The lines of ``metrics.jsonl``.
        damage: What cannot be read.
    """

    path: Path
    owner: str | None = None
    past: PastRun = field(default_factory=PastRun)
    config: Config | None = None
    lines: list[MetricsLine] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    def last(self, *kinds: str) -> MetricsLine | None:
        """The last line of some kinds; None if there is none."""
        return next((line for line in reversed(self.lines) if line["kind"] in kinds), None)


def check_run(path: Path) -> list[Finding]:
    """Check a run.

    Raises:
        UserError: The folder is not that of a run.
    """
    if not path.is_dir() or not is_run(path):
        what = "is not the folder of a run" if path.exists() else "does not exist"
        if (path / "table3.json").is_file():
            what = "holds the runs of a table"
        raise UserError(f"{path} {what}: name a folder that `dst train --run` wrote")
    run = read_run(path)
    return collect(
        ("run", lambda: _check_start(run)),
        ("end", lambda: _check_end(run)),
        ("updates", lambda: _check_progress(run)),
        ("numbers", lambda: _check_numbers(run)),
        ("checkpoint", lambda: _check_checkpoint(run)),
        ("disk", lambda: _check_disk(run)),
        ("mlflow store", lambda: check_tracking(run.path, in_training=run.owner is not None)),
        ("warnings", lambda: _check_warnings(run)),
        ("files", lambda: _check_files(run)),
    )


def read_run(path: Path) -> RunFolder:
    """Read the files of a run folder. What cannot be read is named in ``damage``."""
    run = RunFolder(path)
    try:
        run.owner = lock_owner(path / RUN_LOCK)
    except OSError as error:
        run.damage.append(f"cannot tell whether a process trains there ({error.strerror})")
    run.past = read_past_run(path)
    run.damage += run.past.damage
    try:
        run.config = read_config(path / "config.yaml")
    except DstError as error:
        run.damage.append(str(error))
    _read_metrics(run, path / METRICS_NAME)
    return run


def _read_metrics(run: RunFolder, path: Path) -> None:
    if not os.path.lexists(path):
        return  # the run ended before its first line
    if not path.is_file():
        run.damage.append(f"{path} is not a file")
        return
    try:
        run.lines = list(read_records(path, skip_damaged=True))
        for _ in read_records(path, skip_damaged=False):
            pass
    except DataError as error:
        run.damage.append(str(error))
    except OSError as error:
        run.damage.append(f"cannot read {path}: {error.strerror}")


def _check_start(run: RunFolder) -> Iterator[Finding]:
    if (start := run.past.start) is None:
        yield Finding("run", f"{run.path}; nothing says when it started", "note", "runs record it in logs/")
        return
    processes = "1 process" if len(start.ranks) == 1 else f"{len(start.ranks)} processes"
    hosts = ", ".join(sorted({each.host for each in start.ranks}))
    by = f"{start.launcher}, dstransformer {start.version}"
    yield Finding("run", f"{run.path}: {processes} on {hosts}, {by}, started {_time(start.time)}")


def _check_end(run: RunFolder) -> Iterator[Finding]:
    if run.owner is not None:
        yield Finding("end", f"{run.owner} trains in it now")
        return
    cause, end = find_cause(run.past), run.past.end
    seen = [*run.past.written.values()]
    seen += [line["time"] for line in run.lines[-1:] if isinstance(line.get("time"), int | float)]
    ended = end.time if end else max(seen, default=0.0)
    when = f"{_time(ended)}, " if ended else ""
    bundle = run.path / "bundle"
    if end and end.cause == "finished" and not all((bundle / name).is_file() for name in BUNDLE_FILES):
        yield Finding("end", f"{when}finished, but {bundle} is not complete", "FAULT", _AGAIN)
    else:
        level: Level = "FAULT" if cause.is_fault else "note" if cause.advice else "ok"
        yield Finding("end", f"{when}{cause.text}", level, cause.advice)


def _check_progress(run: RunFolder) -> Iterator[Finding]:
    latest, train = run.last("train", "cost"), run.last("train")
    if latest is None:
        level: Level = "ok" if run.owner is not None else "note"
        yield Finding("updates", "none logged yet", level)
        return
    of = "" if run.config is None else f" of {run.config.training.max_updates:,}"
    text = f"{latest['step']:,}{of}"
    if train is not None:
        figures = (("loss", ".3f", ""), ("tokens_per_second", ",.0f", " tokens a second"))
        for name, form, unit in figures:
            if isinstance(value := train.get(name), int | float):
                text += f", {format(value, form)}{unit}" if unit else f", {name} {format(value, form)}"
    if isinstance(when := latest.get("time"), int | float):
        text += f", last line {_time(when)}"
    yield Finding("updates", text)


def _check_numbers(run: RunFolder) -> Iterator[Finding]:
    bad = [line for line in run.lines if line["kind"] == "bad_update"]
    rollbacks = sum(line["kind"] == "rollback" for line in run.lines)
    empty = [line for line in run.lines if line["kind"] == "train" and line.get("loss", 0.0) is None]
    if not run.lines:
        return
    if not bad and not empty and not rollbacks:
        yield Finding("numbers", "every loss and gradient was finite")
        return
    text = f"{counted(len(bad), 'update')} with a NaN or infinite loss or gradient, {counted(rollbacks, 'rollback')}"
    if bad and isinstance(pairs := bad[-1].get("pairs"), list) and pairs:
        text += f"; the last at update {bad[-1]['step']:,}, training pairs {', '.join(map(str, pairs[:5]))}"
        text += f" and {len(pairs) - 5} more" if len(pairs) > 5 else ""
    last = run.last("train", "bad_update", "rollback")
    is_last = last is not None and (last["kind"] == "bad_update" or last in empty)
    advice = "lower schedule.scale or raise schedule.warmup_steps in a new run, or look at these pairs"
    yield Finding("numbers", text, "FAULT" if is_last or empty else "note", advice)


def _check_checkpoint(run: RunFolder) -> Iterator[Finding]:
    folder = run.path / "checkpoints"
    paths = complete_checkpoints(folder) if folder.is_dir() else []
    if not paths:
        level: Level = "ok" if run.owner is not None else "note"
        yield Finding("checkpoint", "none", level, "" if run.owner else "the same command starts over")
        return
    damaged: list[str] = []
    for path in reversed(paths):
        try:
            verify_files(path, _read_manifest(path)["files"])
        except DataError as error:
            damaged.append(str(error))
        else:
            break
    else:
        text = f"all {len(paths)} are damaged: {damaged[0]}"
        yield Finding("checkpoint", text, "FAULT", "restore one from a copy, or start a new run with another --run")
        return
    good = f"{path.name} is intact, {_size(path) / 1e6:,.1f} MB"
    if damaged:
        yield Finding(
            "checkpoint", f"{damaged[0]}; {good}", "FAULT",
            f"the same command resumes from {path.name}, or restore the damaged file",
        )  # fmt: skip
    else:
        yield Finding("checkpoint", f"{good}; {counted(len(paths), 'checkpoint')}")


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest = path / MANIFEST

    def build(content: dict[str, Any]) -> dict[str, Any]:
        files = content["files"]
        if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
            raise TypeError
        return content

    return read_record(manifest, build, check=lambda content: check_manifest(manifest, content), nan=True)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _check_disk(run: RunFolder) -> Iterator[Finding]:
    if not os.access(run.path, os.W_OK):
        yield Finding("disk", f"{run.path} cannot be written", "FAULT", "check its permissions, and how it is mounted")
        return
    folder = run.path / "checkpoints"
    paths = complete_checkpoints(folder) if folder.is_dir() else []
    found = describe_room("disk", run.path, 1.5 * _size(paths[-1]) if paths else GIB / 10)
    refused = [line for line in run.lines if line["kind"] == "unsaved"]
    saved = run.last("checkpoint")
    if refused and (saved is None or run.lines.index(saved) < run.lines.index(refused[-1])):
        line = refused[-1]
        text = f"{found.text}; at update {line['step']:,} it refused {line.get('what')} ({line.get('reason')})"
        found = Finding("disk", text, "FAULT", "make room; the same command resumes")
    yield found


def _check_warnings(run: RunFolder) -> Iterator[Finding]:
    texts = run.past.warnings
    if not texts:
        yield Finding("warnings", "none since the last start")
    else:
        kinds = list(dict.fromkeys(reversed(texts)))
        yield Finding("warnings", f"{len(texts)} since the last start, the last: {kinds[0]}", "note", "logs/ has all")


def _check_files(run: RunFolder) -> Iterator[Finding]:
    if run.damage:
        yield Finding(
            "files", "; ".join(run.damage[:3]), "FAULT", "restore them from a copy, or leave the run as it is"
        )


def _time(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"
