"""The metrics of ``/metrics``, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from dstransformer.extras.serving.batcher import BatchReport

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ServerMetrics:
    """The counters of one server, in a separate registry."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("dst_requests", "Requests answered", ["path", "status"], registry=registry)
        self._seconds = Histogram(
            "dst_request_seconds", "Seconds from request to answer", ["path"], buckets=_SECONDS, registry=registry
        )
        self._sentences = Counter("dst_sentences", "Sentences translated", registry=registry)
        self._src_tokens = Counter("dst_source_tokens", "Tokens read, without ends", registry=registry)
        self._tgt_tokens = Counter("dst_target_tokens", "Tokens of the best hypotheses", registry=registry)
        self._batches = Histogram(
            "dst_batch_sentences", "Sentences decoded together", buckets=_SENTENCES, registry=registry
        )
        self._batch_seconds = Histogram(
            "dst_batch_seconds", "Seconds to decode a batch", buckets=_SECONDS, registry=registry
        )
        self._queue = Gauge("dst_queue_sentences", "Sentences waiting to be decoded", registry=registry)
        self._unfinished = Gauge("dst_unfinished_requests", "Requests accepted and not answered", registry=registry)

    def watch_queue(self, length: Callable[[], int], unfinished: Callable[[], int]) -> None:
        """Report what the functions return as the length of the queue and the number of unfinished requests."""
        self._queue.set_function(length)
        self._unfinished.set_function(unfinished)

    def watch_process(self, pid: int) -> None:
        """Report the memory, the time and the files of the process of the model, as of this one."""
        ProcessCollector(namespace="dst_model", pid=lambda: pid, registry=self._registry)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count an answer; status 499 is a client that disconnected."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def count_batch(self, batch: BatchReport) -> None:
        """Count a decoded batch."""
        self._sentences.inc(batch.sentences)
        self._src_tokens.inc(batch.src_tokens)
        self._tgt_tokens.inc(batch.tgt_tokens)
        self._batches.observe(batch.sentences)
        self._batch_seconds.observe(batch.seconds)

    def text(self) -> bytes:
        """All values."""
        return generate_latest(self._registry)
