"""Evaluates each new checkpoint beside a training. It only reads, except for the file of its results."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from dstransformer.errors import ConfigError, DataError, StorageError, UnreadableError, check_format_version
from dstransformer.evaluation.systems import FORMAT_VERSION
from dstransformer.evaluation.testset import TestSet
from dstransformer.io.files import append_whole
from dstransformer.io.json_text import parse_json
from dstransformer.io.products import check_kind, complete_checkpoints
from dstransformer.model import Bundle, open_bundle

logger = logging.getLogger(__name__)

#: The results, one JSON object per line.
RESULTS_NAME = "evaluations.jsonl"

#: How often a bundle that cannot be read, as on a network file system that hangs, is tried again.
RETRIES = 20

T = TypeVar("T")

#: What distinguishes results of one bundle: BLEU's tokenizer, the settings of the search, and how it was computed.
SETTINGS = (
    "tokenize", "beam_size", "length_penalty", "max_input_tokens", "long_inputs", "min_tokens", "max_extra_tokens",
    "pruning_threshold", "precision",
)  # fmt: skip


def follow(
    run: Path,
    is_finished: Callable[[], bool],
    load: Callable[[Bundle], T],
    *,
    interval: float,
    wait: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = logger.info,
) -> Iterator[tuple[str, T]]:
    """Iterate over the checkpoints of a run, oldest first, waiting for more; at its end over the final bundle.

    A checkpoint that was deleted in the meantime is skipped; a damaged one too, with a warning. One that cannot be read
    now is tried again, see :data:`RETRIES`.

    Args:
        run: The run folder.
        is_finished: Whether the run has written its final bundle and its scores.
        load: What to do with each bundle. A bundle is skipped if it raises DataError.
        interval: Seconds between two looks.
        wait: Waits for a number of seconds.
        say: Called with a line when there is nothing to do but wait, once at a time.

    Yields:
        ``step-00002000`` or ``bundle``, and what ``load`` returned.

    Raises:
        DataError: The folder is not that of a run.
        UserError: ``load`` raised one that is no DataError.
    """
    check_kind(run, "run", "--follow takes the folder of one")
    done: set[object] = set()
    failures = Counter[object]()
    is_waiting = False
    while True:
        finished = ends_here = is_finished()  # before the look, so that no checkpoint is missed
        folders: list[Path] = []
        with suppress(OSError):  # a folder vanished
            folders = complete_checkpoints(run / "checkpoints")
        for path in [*(folder / "bundle" for folder in folders), *([run / "bundle"] if finished else [])]:
            if (bundle := _identity(path)) is None or bundle in done:
                continue
            try:
                loaded = load(_open(path))
            except DataError as error:
                if _identity(path) is None:  # deleted while it was read
                    continue
                failures[bundle] += 1
                if _is_tried_again(error, failures[bundle]):
                    ends_here = False
                    continue
            else:
                is_waiting = False
                yield ("bundle" if path.parent == run else path.parent.name), loaded
            done.add(bundle)
        if ends_here:
            return
        if not is_waiting:
            say(f"waiting for the next checkpoint of {run}; Ctrl-C ends")
            is_waiting = True
        wait(interval)


def _open(path: Path) -> Bundle:
    try:
        return open_bundle(path)
    except ConfigError as error:  # of its stored configuration, not of what the user gave
        raise DataError(str(error)) from None


def _is_tried_again(error: DataError, failures: int) -> bool:
    """Whether a bundle that could not be loaded is tried again; warns at first, or if it is skipped."""
    if not isinstance(error, UnreadableError):
        logger.warning("%s; it is skipped", error)
        return False
    if failures > RETRIES:
        logger.warning("%s; it is skipped after %d attempts", error, failures)
    elif failures == 1:
        logger.warning("%s; it is tried again at the next looks, at most %d times", error, RETRIES)
    return failures <= RETRIES


def _identity(path: Path) -> tuple[object, ...] | None:
    """What tells a bundle from another one that takes its place later; None if it is gone."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError:  # opening it says why
        return (path,)
    return path, status.st_ino, status.st_mtime_ns


class Results:
    """The results of a run's checkpoints, in ``evaluations.jsonl`` of its folder.

    Args:
        run: The run folder.

    Raises:
        DataError: A line is of a newer format.
        StorageError: The file cannot be read.
    """

    def __init__(self, run: Path) -> None:
        self._path = run / RESULTS_NAME
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            text = ""
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error.strerror}") from None
        self._lead = "" if text.endswith("\n") or not text else "\n"  # a crash cut the last line off
        self._records: list[Mapping[str, Any]] = []
        for line in text.splitlines():
            with suppress(ValueError):  # cut off
                if isinstance(record := parse_json(line, nan=True), dict):
                    check_format_version(record.get("format_version"), FORMAT_VERSION, self._path)
                    self._records.append(record)

    def has(self, result: Mapping[str, Any], metrics: Iterable[str] = ()) -> bool:
        """Whether there is a result of the same weights and test set, with the same search, and with these metrics."""
        return _is_among(result, metrics, self._records)

    def missing_in(self, others: Sequence[Mapping[str, Any]], test_sets: Sequence[TestSet]) -> list[dict[str, Any]]:
        """The results on these test sets that are not among ``others``, as they were given to :meth:`append`."""
        digests = {test_set.digest for test_set in test_sets}
        return [
            {name: value for name, value in record.items() if name not in ("checkpoint", "time")}
            for record in self._records
            if record["test_set"]["digest"] in digests and not _is_among(record, record["metrics"], others)
        ]

    def append(self, checkpoint: str, result: Mapping[str, Any]) -> None:
        """Add a result.

        Raises:
            StorageError: The file cannot be written.
        """
        record = {"format_version": FORMAT_VERSION, "checkpoint": checkpoint, "time": round(time.time(), 3), **result}
        try:
            append_whole(self._path, f"{self._lead}{json.dumps(record, ensure_ascii=False)}\n")
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}; the training is not affected") from None
        self._lead = ""
        self._records.append(record)


def _is_among(result: Mapping[str, Any], metrics: Iterable[str], others: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the others of the same weights, test set and search have these metrics, all of them together."""
    same = [other for other in others if _key(other) == _key(result)]
    names = {name for other in same for name in other.get("metrics") or ()}
    return bool(same) and names.issuperset(metrics)


def _key(record: Mapping[str, Any]) -> tuple[object, ...]:
    test_set = record.get("test_set")
    digest = test_set.get("digest") if isinstance(test_set, dict) else None
    return record.get("weights_sha256"), digest, *(record.get(name) for name in SETTINGS)
