"""The queue of sentences and the thread that decodes them: sentences of several requests are translated together."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dstransformer.extras.serving.model import Batch, Candidates, Query

logger = logging.getLogger(__name__)

#: Maximum value of the header Retry-After, in seconds.
MAX_RETRY_AFTER = 60

_RATE_WEIGHT = 0.2  # of the newest batch in the moving average of the speed


class QueueFullError(Exception):
    """The queue has no room for the sentences.

    Attributes:
        retry_after: Seconds after which there may be room, at least 1.
    """

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"{waiting} sentences are waiting")
        self.retry_after = retry_after


class StoppingError(Exception):
    """The server accepts no more work, or has abandoned what it had accepted."""


class BatchReport(NamedTuple):
    """Sizes of a decoded batch: sentences, source tokens, tokens of the best hypotheses; and its seconds."""

    sentences: int
    src_tokens: int
    tgt_tokens: int
    seconds: float


@dataclass(eq=False)
class Job:
    """The work of one request: sentences to translate, or a call that needs the model.

    Attributes:
        future: Set to the candidates of each sentence, or to what the call returns.
    """

    n_best: int
    alignments: bool
    prefixed: bool
    results: list[Candidates]
    left: int
    call: Callable[[], Any] | None = None
    future: Future[Any] = field(default_factory=Future)


@dataclass(eq=False)
class _Item:
    """A sentence in the queue, or a call, which counts as one."""

    job: Job
    index: int
    query: Query
    arrived: float

    @property
    def kind(self) -> object:
        """Only sentences of one kind are translated together."""
        return self.job if self.job.call is not None else (self.job.n_best, self.job.alignments, self.job.prefixed)


class Batcher:
    """Runs the work of many threads in one.

    A batch is the oldest sentence in the queue and all that fit with it: those of the same ``n_best``, with or without
    alignments, oldest first, up to ``batch_tokens`` source tokens. If the thread is idle, a sentence waits up to
    ``delay`` seconds for others.

    Args:
        search: Translates a batch; only called in the thread.
        batch_tokens: Maximum source tokens of a batch, ends included; a longer sentence is a batch of one.
        queue: Maximum sentences that may wait.
        delay: Seconds.
        report: Called in the thread after each batch.
    """

    def __init__(
        self,
        search: Callable[[Batch], list[Candidates]],
        *,
        batch_tokens: int,
        queue: int,
        delay: float,
        report: Callable[[BatchReport], None] = lambda _: None,
    ) -> None:
        self._search = search
        self._batch_tokens = batch_tokens
        self._queue = queue
        self._delay = delay
        self._report = report
        self._changed = threading.Condition()
        self._waiting: deque[_Item] = deque()
        self._unfinished: set[Job] = set()
        self._stopping = False
        self._rate = 0.0  # sentences a second, moving average
        self._thread = threading.Thread(target=self._run, name="decoding", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Sentences in the queue."""
        return len(self._waiting)

    @property
    def unfinished(self) -> int:
        """Requests that were accepted and have no result yet."""
        return len(self._unfinished)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, queries: Sequence[Query], n_best: int = 1, *, alignments: bool = False) -> Job:
        """Queue sentences, at least one: all or none of them.

        Raises:
            QueueFullError: The queue has no room for the sentences.
            StoppingError: The batcher was stopped.
        """
        job = Job(n_best, alignments, any(query.prefix for query in queries), [None] * len(queries), len(queries))
        self._add(job, queries)
        return job

    def submit_call(self, call: Callable[[], Any]) -> Job:
        """Queue a call that needs the model; it counts as one sentence. Errors as for :meth:`submit`."""
        job = Job(1, False, False, [], 1, call)
        self._add(job, [Query("", 0)])
        return job

    def _add(self, job: Job, queries: Sequence[Query]) -> None:
        now = time.monotonic()
        with self._changed:
            if self._stopping:
                raise StoppingError
            if len(self._waiting) + len(queries) > self._queue:
                seconds = len(self._waiting) / self._rate if self._rate else 1.0
                raise QueueFullError(len(self._waiting), min(max(math.ceil(seconds), 1), MAX_RETRY_AFTER))
            self._waiting.extend(_Item(job, index, query, now) for index, query in enumerate(queries))
            self._unfinished.add(job)
            self._changed.notify()

    def drop(self, job: Job) -> None:
        """Drop a request: remove its waiting sentences from the queue and ignore the results of the others."""
        with self._changed:
            self._waiting = deque(item for item in self._waiting if item.job is not job)
            self._unfinished.discard(job)

    def stop(self) -> None:
        """Accept no more work; accepted work is finished. Does not wait."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def abandon(self, error: Exception) -> int:
        """Stop, and fail unfinished requests with this error; returns their number. Does not wait."""
        self.stop()
        with self._changed:
            lost = list(self._unfinished)
            self._unfinished.clear()
            self._waiting.clear()
            for job in lost:
                job.future.set_exception(error)
            self._changed.notify()
        return len(lost)

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            self._work(batch)

    def _take(self) -> list[_Item] | None:
        """Wait for the next batch; None once the batcher is stopped and the queue is empty."""
        with self._changed:
            while True:
                while not self._waiting:
                    if self._stopping:
                        return None
                    self._changed.wait()
                batch, rest, room = self._choose()
                left = self._waiting[0].arrived + self._delay - time.monotonic()
                if left <= 0 or room <= 0 or rest or self._stopping or batch[0].job.call is not None:
                    self._waiting = rest
                    return batch
                self._changed.wait(min(left, threading.TIMEOUT_MAX))

    def _choose(self) -> tuple[list[_Item], deque[_Item], int]:
        """The next batch as the queue is now, what stays in the queue, and the tokens that would still fit."""
        kind, room = self._waiting[0].kind, self._batch_tokens
        batch: list[_Item] = []
        rest: deque[_Item] = deque()
        for item in self._waiting:
            tokens = item.query.tokens + 1
            if item.kind == kind and (tokens <= room or not batch):
                batch.append(item)
                room -= tokens
            else:
                rest.append(item)
        return batch, rest, room

    def _work(self, batch: list[_Item]) -> None:
        try:
            if (call := batch[0].job.call) is not None:
                self._resolve(batch[0].job, call())
            else:
                self._translate(batch)
        except Exception as error:
            if len(batch) == 1:
                job = batch[0].job
                with self._changed:
                    self._waiting = deque(item for item in self._waiting if item.job is not job)
                    if job in self._unfinished:
                        self._unfinished.discard(job)
                        job.future.set_exception(error)
                return
            for item in batch:  # one of them may have caused the error: try each alone
                self._work([item])

    def _translate(self, batch: list[_Item]) -> None:
        began = time.monotonic()
        job = batch[0].job
        found = self._search(Batch([item.query for item in batch], job.n_best, job.alignments))
        seconds = time.monotonic() - began
        tgt_tokens = sum(candidates[0].tokens for candidates in found if candidates)
        rate = len(batch) / max(seconds, 1e-6)
        self._rate += (rate - self._rate) * (_RATE_WEIGHT if self._rate else 1.0)
        self._report(BatchReport(len(batch), sum(item.query.tokens for item in batch), tgt_tokens, seconds))
        for item, candidates in zip(batch, found, strict=True):
            job = item.job
            job.results[item.index] = candidates
            job.left -= 1
            if not job.left:
                self._resolve(job, job.results)

    def _resolve(self, job: Job, result: Any) -> None:
        with self._changed:
            if job in self._unfinished:
                self._unfinished.discard(job)
                job.future.set_result(result)
