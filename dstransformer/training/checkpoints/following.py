"""Evaluates each new checkpoint beside a training. It only reads, except for the file of its results."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from dstransformer.data import Corpus
from dstransformer.decoding import Translator
from dstransformer.errors import ConfigError, DataError, StorageError, UnreadableError, UserError, check_format_version
from dstransformer.evaluation.bleu import bleu_tokenizer, tokenizer_note
from dstransformer.evaluation.directions import covered_rows
from dstransformer.evaluation.learned import LearnedMetric
from dstransformer.evaluation.systems import (
    FORMAT_VERSION,
    SystemResult,
    bundle_facts,
    evaluate_bundle,
    target_language,
)
from dstransformer.evaluation.testset import TestSet
from dstransformer.io.files import read_error
from dstransformer.io.json_text import parse_json
from dstransformer.io.products import check_kind, complete_checkpoints, kind_of
from dstransformer.model import Bundle, Transformer, open_bundle
from dstransformer.tracking.metrics_log import METRICS_NAME, read_records

logger = logging.getLogger(__name__)

#: The results, one JSON object per line.
RESULTS_NAME = "evaluations.jsonl"

#: How often a bundle that cannot be read, as on a network file system that hangs, is tried again.
RETRIES = 20

T = TypeVar("T")

#: What distinguishes results of one bundle: BLEU's tokenizer, the settings of the search, and how it was computed.
SETTINGS = (
    "tokenize",
    "beam_size",
    "length_penalty",
    "max_input_tokens",
    "long_inputs",
    "min_tokens",
    "max_extra_tokens",
    "pruning_threshold",
    "precision",
)


def evaluate_run(
    run: Path,
    test_sets: Sequence[TestSet],
    load: Callable[[Bundle], Translator],
    *,
    interval: float,
    tokenize: str = "auto",
    learned: Sequence[LearnedMetric] = (),
    say: Callable[[str], None] = logger.info,
    progress: Callable[[int], None] | None = None,
) -> Iterator[SystemResult]:
    """Evaluate the checkpoints of a run, oldest first, waiting for more; at its end the final bundle.

    Each result is appended to ``evaluations.jsonl`` of the run folder. Results that it has are not computed again.

    Args:
        run: The run folder.
        test_sets: The test sets.
        load: Builds the translator of a bundle.
        interval: Seconds between two looks for a new checkpoint.
        tokenize: The tokenizer of BLEU, see :func:`dstransformer.evaluation.bleu.bleu_tokenizer`.
        learned: Learned metrics, to add their scores. One that fails is a warning, and a result without its score.
        say: Called with a line when there is nothing to do but wait, once at a time.
        progress: Called with the number of sentences just translated.

    Raises:
        DataError: The folder is not that of a run.
        StorageError: The results cannot be written.
    """

    def load_translator(bundle: Bundle) -> tuple[Bundle, Translator]:
        if bundle.form.model:
            raise UserError(f"--follow {run}: it trains {bundle.form.model}, whose checkpoints cannot be followed yet")
        translator = load(bundle)
        copy_weights(translator.model)
        return bundle, translator

    results, say_once = Results(run), cache(say)
    for name, (bundle, translator) in follow(run, load_translator, interval, say=say):
        choice = target_language(bundle, translator), tokenize, "--tokenize "
        tokenizer = bleu_tokenizer(*choice)
        if (note := tokenizer_note(*choice)) is not None:
            say_once(note)
        facts = bundle_facts(bundle, translator, tokenizer)
        also = {metric.name for metric in learned}
        wanted = [one for one in test_sets if not results.has({**facts, "test_set": one.to_json()}, also)]
        for test_set in wanted:
            for result in evaluate_bundle(
                bundle,
                translator,
                [test_set],
                name=name,
                tokenize=tokenizer,
                learned=learned,
                is_lenient=True,
                progress=progress,
            ):
                results.append(name, result.to_json())
                yield result


def follow(
    run: Path,
    load: Callable[[Bundle], T],
    interval: float,
    *,
    wait: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = logger.info,
) -> Iterator[tuple[str, T]]:
    """Iterate over the checkpoints of a run, oldest first, waiting for more; at its end over the final bundle.

    The run has ended when its final bundle exists and is scored. A checkpoint that was deleted in the meantime is
    skipped; a damaged one too, with a warning. One that cannot be read now is tried again, see :data:`RETRIES`.

    Args:
        run: The run folder.
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
    reader = _Reader(load)
    waiting = False
    while True:
        finished = is_finished(run)  # before the look, so that no checkpoint is missed
        reader.start_look()
        folders: list[Path] = []
        with suppress(OSError):  # a folder vanished
            folders = complete_checkpoints(run / "checkpoints")
        for place in [*(folder / "bundle" for folder in folders), *([run / "bundle"] if finished else [])]:
            name = "bundle" if place.parent == run else place.parent.name
            if (loaded := reader.read(place)) is not None:
                waiting = False
                yield name, loaded
        if finished and not reader.has_unread:
            return
        if not waiting:
            say(f"waiting for the next checkpoint of {run}; Ctrl-C ends")
            waiting = True
        wait(interval)


def find_bundle(run: Path, interval: float, *, say: Callable[[str], None] = logger.info) -> Bundle:
    """The oldest bundle of a run, waiting for it if there is none yet; see :func:`follow`.

    Raises:
        DataError: The folder is not that of a run, or the run has ended and none of its bundles can be read.
    """
    for _, bundle in follow(run, lambda bundle: bundle, interval, say=say):
        return bundle
    raise DataError(f"--follow {run}: none of its bundles can be read; restore one")


def copy_weights(model: Transformer) -> None:
    """Read the weights into memory. Until then they may be pages of a file that the run deletes."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def validation_sets(bundle: Bundle) -> list[TestSet]:
    """The validation split of the corpus that a model was trained on; of several directions, a set for each.

    Raises:
        DataError: The corpus is not where the provenance says, or has no text.
    """
    recorded = bundle.provenance.get("corpus")
    if not isinstance(recorded, str) or not Path(recorded).is_dir():
        raise DataError(
            f"the corpus of {bundle.path} no longer exists ({recorded}): name a test set with --src and --ref"
        )
    split = Corpus.open(recorded, verify=False).split("validation")
    sources, references = split.src_texts(), split.tgt_texts()
    return [
        TestSet(f"validation {name}".rstrip(), tuple(sources[rows.start : rows.stop]),
                tuple(references[rows.start : rows.stop]), recorded, recorded)
        for name, rows in covered_rows(split, 0).items()
    ]  # fmt: skip


def is_finished(run: Path) -> bool:
    """Whether a run has written its final bundle and its scores, and has not continued training since."""
    if kind_of(run / "bundle") != "bundle":
        return False
    try:
        last = None
        for record in read_records(run / METRICS_NAME, skip_damaged=True):
            last = last if record["kind"] == "unsaved" else record  # lines that could not be written for a while
    except OSError:
        return False
    return last is not None and last["kind"].startswith("final_")


class _Reader(Generic[T]):
    """Reads bundles, each once. One that cannot be read now is read again in the next looks.

    Args:
        load: See :func:`follow`.

    Attributes:
        has_unread: Whether a bundle of this look is to be read again.
    """

    def __init__(self, load: Callable[[Bundle], T]) -> None:
        self.has_unread = False
        self._load = load
        self._done: set[tuple[object, ...]] = set()
        self._failures = Counter[tuple[object, ...]]()

    def start_look(self) -> None:
        """Start another look at the bundles of the run."""
        self.has_unread = False

    def read(self, place: Path) -> T | None:
        """What ``load`` returns for a bundle; None if the bundle was read before, is gone, or cannot be read."""
        bundle: tuple[object, ...] = (place,)
        try:
            bundle = _identity(place)
            if bundle in self._done:
                return None
            loaded = self._load(_open(place))
        except DataError as error:
            if not _is_gone(place):
                self._record_failure(bundle, error)
            return None
        self._done.add(bundle)
        return loaded

    def _record_failure(self, bundle: tuple[object, ...], error: DataError) -> None:
        self._failures[bundle] += 1
        if not isinstance(error, UnreadableError):
            logger.warning("%s; it is skipped", error)
            self._done.add(bundle)
        elif self._failures[bundle] <= RETRIES:
            self.has_unread = True
            if self._failures[bundle] == 1:
                logger.warning("%s; it is tried again at the next looks, at most %d times", error, RETRIES)
        else:
            self._done.add(bundle)


def _open(place: Path) -> Bundle:
    try:
        return open_bundle(place)
    except ConfigError as error:
        raise DataError(str(error)) from None


def _identity(place: Path) -> tuple[object, ...]:
    """What tells a bundle from another one that takes its place later.

    Raises:
        DataError: There is none (``UnreadableError`` if looking again may find one).
    """
    try:
        status = place.stat()
    except OSError as error:
        raise read_error(place, error) from None
    return place, status.st_ino, status.st_mtime_ns


def _is_gone(place: Path) -> bool:
    try:
        place.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


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
        self._done = _metrics_by_key(self._read())

    def has(self, result: Mapping[str, Any], metrics: Iterable[str] = ()) -> bool:
        """Whether there is a result of the same weights and test set, with the same search, and with these metrics."""
        return _key(result) in self._done and self._done[_key(result)].issuperset(metrics)

    def missing_in(self, others: Iterable[Mapping[str, Any]], test_sets: Sequence[TestSet]) -> list[dict[str, Any]]:
        """The results on these test sets that are not among ``others``, as they were given to :meth:`append`."""
        known, digests = _metrics_by_key(others), {test_set.to_json()["digest"] for test_set in test_sets}
        return [
            {name: value for name, value in record.items() if name not in ("checkpoint", "time")}
            for record in self._read()
            if record["test_set"]["digest"] in digests
            and not (_key(record) in known and known[_key(record)].issuperset(record["metrics"]))
        ]

    def append(self, checkpoint: str, result: dict[str, Any]) -> None:
        """Add a result. The line is on disk when the call returns.

        Raises:
            StorageError: The file cannot be written.
        """
        record = {"format_version": FORMAT_VERSION, "checkpoint": checkpoint, "time": round(time.time(), 3), **result}
        line = json.dumps(record, ensure_ascii=False) + "\n"
        try:
            with self._path.open("a+b") as file:
                if file.tell() and not _ends_with_newline(file.fileno()):  # a crash cut the last line off
                    line = "\n" + line
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}; the training is not affected") from None
        self._done |= _metrics_by_key([record])

    def _read(self) -> Iterator[dict[str, Any]]:
        try:
            lines: Sequence[str] = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error.strerror}") from None
        for line in lines:
            try:
                record = parse_json(line, nan=True)
            except ValueError:  # cut off by a crash
                continue
            if isinstance(record, dict):
                check_format_version(record.get("format_version"), FORMAT_VERSION, self._path)
                yield record


def _key(record: Mapping[str, Any]) -> tuple[object, ...]:
    test_set = record.get("test_set")
    digest = test_set.get("digest") if isinstance(test_set, dict) else None
    values = (record.get("weights_sha256"), digest, *(record.get(name) for name in SETTINGS))
    return tuple(repr(value) if isinstance(value, list | dict) else value for value in values)


def _metrics_by_key(records: Iterable[Mapping[str, Any]]) -> dict[tuple[object, ...], set[str]]:
    """The names of the metrics that there are, of all records of a key together."""
    found: dict[tuple[object, ...], set[str]] = {}
    for record in records:
        found.setdefault(_key(record), set()).update(record.get("metrics") or ())
    return found


def _ends_with_newline(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
