"""Checks of a run: why it ended, how far it came, and whether what it left is intact."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from dstransformer.config import Config
from dstransformer.config.loading import read_config
from dstransformer.distributed.supervision.rank_log import (
    END_NAME,
    MAX_BYTES,
    VERDICTS,
    End,
    RankProcess,
    Start,
    log_path,
    read_end,
    read_start,
)
from dstransformer.errors import DataError, DstError, counted
from dstransformer.extras.doctor.finding import Finding, Level, collect
from dstransformer.extras.doctor.machine import GIB, describe_room
from dstransformer.extras.doctor.store import check_tracking
from dstransformer.io.files import RESUME_ADVICE, lock_owner, read_bounded
from dstransformer.io.json_text import read_record
from dstransformer.io.products import BUNDLE_FILES, RUN_LOCK, check_kind, complete_checkpoints
from dstransformer.tracking.metrics_log import METRICS_NAME, MetricsLine, read_records
from dstransformer.training.checkpoints.format import MANIFEST, check_manifest, verify_files

_AGAIN = "run the same command again: it resumes from the newest checkpoint, or starts over if there is none"

_MEMORY = (
    "let batch.micro_batches=auto find how few parts fit, use more processes, or --ds zero2 or zero3 with "
    "offload_optimizer, or training.activation_checkpointing=true"
)

#: What to do, by the cause. Errors of this package say it themselves.
_ADVICE = {
    "memory": _MEMORY,
    "full disk": RESUME_ADVICE,
    "disk": f"look at that disk; then {_AGAIN}",
    "hung": "the stacks in logs/rank-*.log say where it hangs; check GPUs and network",
    "silent": f"look at that machine and at the network to it; then {_AGAIN}",
    "connection": f"NCCL_DEBUG=INFO shows more; see GLOO_SOCKET_IFNAME; then {_AGAIN}",
    "bug": "a bug, or a fault of the machine: please report it with logs/",
}

#: The kernel's log.
_KMSG = Path("/dev/kmsg")


@dataclass
class RunFolder:
    """A run folder, read once.

    Attributes:
        path: The folder.
        owner: The process that trains in it; None if none does.
        start: Who started the last run in it; None if nothing says that.
        end: How that ended; None if nothing says that.
        logs: The lines of the log of each rank since its start, as far as the log goes back.
        written: When each rank wrote its log last, in Unix seconds.
        config: The configuration; None if it cannot be read.
        lines: The lines of ``metrics.jsonl``.
        damage: What cannot be read.
    """

    path: Path
    owner: str | None = None
    start: Start | None = None
    end: End | None = None
    logs: dict[int, list[str]] = field(default_factory=dict)
    written: dict[int, float] = field(default_factory=dict)
    config: Config | None = None
    lines: list[MetricsLine] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    @property
    def processes(self) -> list[RankProcess]:
        """The processes of the last run, by rank."""
        return self.start.ranks if self.start else []

    @property
    def warnings(self) -> list[str]:
        """The warnings and errors that the ranks logged before their end."""
        lines = [line.split(" ", 3) for lines in self.logs.values() for line in lines]  # date, time, level, message
        found = [parts[3] for parts in lines if len(parts) == 4 and parts[2] in ("WARNING", "ERROR", "CRITICAL")]
        return [text for text in found if not text.startswith("ended: ")]

    def last(self, *kinds: str) -> MetricsLine | None:
        """The last line of some kinds; None if there is none."""
        return next((line for line in reversed(self.lines) if line["kind"] in kinds), None)


def check_run(path: Path) -> list[Finding]:
    """Check a run.

    Raises:
        UserError: The folder is not that of a run.
    """
    check_kind(path, "run", "name a folder that `dst train --run` wrote; of a table, that of a row")
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
    with _noting(run.damage):
        run.start = read_start(path)
    with _noting(run.damage):
        run.end = read_end(path)
    for rank, process in enumerate(run.processes):
        with _noting(run.damage):
            log = log_path(path, rank)
            text = _read_log(log.with_name(f"{log.name}.1")) + _read_log(log)
            begin = f"rank {rank} of {len(run.processes)} on {process.host}, process {process.process}, "
            run.logs[rank] = text.rpartition(begin)[2].splitlines()[1:]
            run.written[rank] = log.stat().st_mtime
    with _noting(run.damage):
        run.config = read_config(path / "config.yaml")
    metrics = path / METRICS_NAME
    if metrics.is_file():
        with _noting(run.damage):
            run.lines = list(read_records(metrics, skip_damaged=True))
            for _ in read_records(metrics, skip_damaged=False):
                pass
    elif os.path.lexists(metrics):  # otherwise the run ended before its first line
        run.damage.append(f"{metrics} is not a file")
    return run


def _check_start(run: RunFolder) -> Finding:
    if (start := run.start) is None:
        return Finding("run", f"{run.path}; nothing says when it started", "note", "runs record it in logs/")
    processes = "1 process" if len(start.ranks) == 1 else f"{len(start.ranks)} processes"
    hosts = ", ".join(sorted({each.host for each in start.ranks}))
    by = f"{start.launcher}, dstransformer {start.version}"
    return Finding("run", f"{run.path}: {processes} on {hosts}, {by}, started {_time(start.time)}")


def _check_end(run: RunFolder) -> Finding:
    if run.owner is not None:
        return Finding("end", f"{run.owner} trains in it now")
    cause, end = find_cause(run), run.end
    seen = [*run.written.values()]
    seen += [line["time"] for line in run.lines[-1:] if isinstance(line.get("time"), int | float)]
    ended = end.time if end else max(seen, default=0.0)
    when = f"{_time(ended)}, " if ended else ""
    bundle = run.path / "bundle"
    if end and end.cause == "finished" and not all((bundle / name).is_file() for name in BUNDLE_FILES):
        text = f"finished, but {bundle} is not complete"
        cause = Finding("end", text, "FAULT", "run the same command to write it again")
    return replace(cause, text=f"{when}{cause.text}")


def _check_progress(run: RunFolder) -> Finding:
    latest, train = run.last("train", "cost"), run.last("train")
    if latest is None:
        return Finding("updates", "none logged yet", "ok" if run.owner is not None else "note")
    of = "" if run.config is None else f" of {run.config.training.max_updates:,}"
    text = f"{latest['step']:,}{of}"
    if train is not None:
        figures = (("loss", ".3f", ""), ("tokens_per_second", ",.0f", " tokens a second"))
        for name, form, unit in figures:
            if isinstance(value := train.get(name), int | float):
                text += f", {format(value, form)}{unit}" if unit else f", {name} {format(value, form)}"
    if isinstance(when := latest.get("time"), int | float):
        text += f", last line {_time(when)}"
    return Finding("updates", text)


def _check_numbers(run: RunFolder) -> list[Finding]:
    bad = [line for line in run.lines if line["kind"] == "bad_update"]
    rollbacks = sum(line["kind"] == "rollback" for line in run.lines)
    empty = [line for line in run.lines if line["kind"] == "train" and line.get("loss", 0.0) is None]
    if not run.lines:
        return []
    if not bad and not empty and not rollbacks:
        return [Finding("numbers", "every loss and gradient was finite")]
    text = f"{counted(len(bad), 'update')} with a NaN or infinite loss or gradient, {counted(rollbacks, 'rollback')}"
    if bad and isinstance(pairs := bad[-1].get("pairs"), list) and pairs:
        text += f"; the last at update {bad[-1]['step']:,}, training pairs {', '.join(map(str, pairs[:5]))}"
        text += f" and {len(pairs) - 5} more" if len(pairs) > 5 else ""
    last = run.last("train", "bad_update", "rollback")
    is_last = last is not None and (last["kind"] == "bad_update" or last in empty)
    advice = "lower schedule.scale or raise schedule.warmup_steps in a new run, or look at these pairs"
    return [Finding("numbers", text, "FAULT" if is_last or empty else "note", advice)]


def _check_checkpoint(run: RunFolder) -> Finding:
    folder = run.path / "checkpoints"
    paths = complete_checkpoints(folder) if folder.is_dir() else []
    if not paths:
        level: Level = "ok" if run.owner is not None else "note"
        return Finding("checkpoint", "none", level, "" if run.owner else "the same command starts over")
    damaged: list[str] = []
    hashes = TypeAdapter(dict[str, str])
    for path in reversed(paths):
        manifest = path / MANIFEST
        try:
            files = read_record(
                manifest, lambda content: hashes.validate_python(content["files"]),
                check=partial(check_manifest, manifest), nan=True,
            )  # fmt: skip
            verify_files(path, files)
        except DataError as error:
            damaged.append(str(error))
        else:
            break
    else:
        text = f"all {len(paths)} are damaged: {damaged[0]}"
        return Finding("checkpoint", text, "FAULT", "restore one from a copy, or start a new run with another --run")
    good = f"{path.name} is intact, {_size(path) / 1e6:,.1f} MB"
    if damaged:
        advice = f"the same command resumes from {path.name}, or restore the damaged file"
        return Finding("checkpoint", f"{damaged[0]}; {good}", "FAULT", advice)
    return Finding("checkpoint", f"{good}; {counted(len(paths), 'checkpoint')}")


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _check_disk(run: RunFolder) -> Finding:
    if not os.access(run.path, os.W_OK):
        return Finding("disk", f"{run.path} cannot be written", "FAULT", "check its permissions, and how it is mounted")
    folder = run.path / "checkpoints"
    paths = complete_checkpoints(folder) if folder.is_dir() else []
    room = describe_room("disk", run.path, 1.5 * _size(paths[-1]) if paths else GIB / 10)
    refused = [line for line in run.lines if line["kind"] == "unsaved"]
    saved = run.last("checkpoint")
    if refused and (saved is None or run.lines.index(saved) < run.lines.index(refused[-1])):
        line = refused[-1]
        text = f"{room.text}; at update {line['step']:,} it refused {line.get('what')} ({line.get('reason')})"
        return Finding("disk", text, "FAULT", "make room; the same command resumes")
    return room


def _check_warnings(run: RunFolder) -> Finding:
    texts = run.warnings
    if not texts:
        return Finding("warnings", "none since the last start")
    return Finding("warnings", f"{len(texts)} since the last start, the last: {texts[-1]}", "note", "logs/ has all")


def _check_files(run: RunFolder) -> list[Finding]:
    advice = "restore them from a copy, or leave the run as it is"
    return [Finding("files", "; ".join(run.damage[:3]), "FAULT", advice)] if run.damage else []


def _time(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"


def _read_log(path: Path) -> str:
    """The text of a log; empty if it is missing. Stacks at its end may exceed its usual size."""
    try:
        return read_bounded(path, 2 * MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


@contextmanager
def _noting(damage: list[str]) -> Iterator[None]:
    """Note why the block cannot read a file."""
    try:
        yield
    except DstError as error:
        damage.append(str(error))
    except OSError as error:
        damage.append(f"cannot read {error.filename}: {error.strerror}")


def find_cause(run: RunFolder) -> Finding:
    """Why a run ended in which no process trains now; a fault unless it finished or was asked to stop."""
    end, ranks = run.end, run.processes
    if end is None:
        return _explain_silence(run, ranks)
    if end.cause == "finished":
        return Finding("end", "finished")
    if end.cause == "stopped":
        return Finding("end", end.message, "note", _AGAIN)
    if end.cause == "interrupted":
        return Finding("end", "ended by a second Ctrl-C, without a checkpoint of its last update", "note", _AGAIN)
    named = [ranks[rank] for rank in end.ranks if rank < len(ranks)]
    if end.cause == "died":
        return Finding("end", end.message, "FAULT", _explain_death(named))
    text = end.message
    if end.cause not in VERDICTS and len(ranks) > 1 and named:
        text = f"rank {end.ranks[0]} on {named[0].host}: {text}"
    advice = _ADVICE.get(end.cause, "")
    return Finding("end", text, "FAULT", "" if advice in text else advice)


def _explain_silence(run: RunFolder, ranks: Sequence[RankProcess]) -> Finding:
    """Why a run ended that has recorded no end."""
    if any(END_NAME in text for text in run.damage) or not run.written:
        advice = "read what the launcher printed, or run the command again"
        return Finding("end", "nothing says when or how it ended", "FAULT", advice)
    first = min(run.written, key=lambda rank: run.written[rank])
    who = "its process" if len(ranks) == 1 else f"its {len(ranks)} processes"
    whose = "its log" if len(ranks) == 1 else f"the log of rank {first} on {ranks[first].host} stops first and"
    last = run.logs[first][-1:] or ["nothing"]
    text = f"{who} ended without a word, killed (kill -9), or the machine failed; {whose} ends with: {last[0]}"
    return Finding("end", text, "FAULT", _explain_death(ranks))


def _explain_death(ranks: Sequence[RankProcess]) -> str:
    """What to do about processes that were killed, and whether the kernel did so because memory ran out."""
    here = {each.process for each in ranks if each.host == platform.node()}
    if here & killed_for_memory():
        return f"the kernel killed it because this machine's memory ran out: {_MEMORY}"
    hosts = ", ".join(sorted({each.host for each in ranks} - {platform.node()})) or "this machine"
    return f"`dmesg -T | grep -i killed` on {hosts} says whether memory ran out there; if not, {_AGAIN}"


def killed_for_memory(log: Path = _KMSG) -> set[int]:
    """The processes that the kernel of this machine has killed because memory ran out, as far as its log tells."""
    killed: set[int] = set()
    with suppress(OSError), os.fdopen(os.open(log, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
        line: bytes | None = b"-"
        while line:  # None at the end of the kernel's log
            try:
                line = file.read(8192)
            except BrokenPipeError:  # the kernel has overwritten the line
                continue
            killed.update(int(number) for number in re.findall(rb"Killed process (\d+)", line or b""))
    return killed
