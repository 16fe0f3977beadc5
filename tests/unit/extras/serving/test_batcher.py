from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
from support.data.corpora import TEXT, small_tokenizer
from support.processes.launching import LIMIT, wait_until

from dstransformer.decoding import Translator
from dstransformer.errors import DataError
from dstransformer.extras.serving.batcher import Batcher, BatchReport, QueueFullError, StoppingError
from dstransformer.extras.serving.loaded_model import LoadedModel
from dstransformer.extras.serving.model import Batch, Candidates, Query

#: Longer than any test: what waits for company waits until something else ends the wait.
FOREVER = 1e6

#: Tokens of words, with the end.
TOKENS = {word: len(small_tokenizer().encode([word])[0]) + 1 for word in ("dog", "fox")}


class Gate:
    """Searches with a model once the gate is open, and records the batches."""

    def __init__(self, model: LoadedModel) -> None:
        self._search = model.search
        self.batches: list[Batch] = []
        self.open = threading.Event()

    def __call__(self, batch: Batch) -> list[Candidates]:
        self.batches.append(batch)
        assert self.open.wait(LIMIT)
        return self._search(batch)


@pytest.fixture
def gate(model: LoadedModel) -> Iterator[Gate]:
    gate = Gate(model)
    yield gate
    gate.open.set()


def queries(*texts: str, prefix: str = "") -> list[Query]:
    return [Query(text, len(ids), prefix) for text, ids in zip(texts, small_tokenizer().encode(texts), strict=True)]


def block(batcher: Batcher, gate: Gate) -> None:
    """Make the thread decode a sentence behind the closed gate."""
    batcher.submit(queries("fox"))
    wait_until(lambda: len(gate.batches) == 1)


def texts_of(batches: Sequence[Batch]) -> list[list[str]]:
    return [[query.text for query in batch.queries] for batch in batches]


def test_requests_are_decoded_together_and_each_gets_its_own(gate: Gate, translator: Translator) -> None:
    reports: list[BatchReport] = []
    batcher = Batcher(gate, batch_tokens=1000, queue=100, delay=0.0, report=reports.append)
    block(batcher, gate)
    jobs = [batcher.submit(queries(text, "dog")) for text in TEXT]
    gate.open.set()
    found = [[row[0].text for row in job.future.result(LIMIT)] for job in jobs]
    assert found == [translator.translate([text, "dog"]) for text in TEXT]
    assert len(gate.batches) == 2
    assert [report.sentences for report in reports] == [1, 2 * len(TEXT)]
    assert reports[1].src_tokens == sum(map(len, small_tokenizer().encode([*TEXT, *["dog"] * len(TEXT)])))
    assert batcher.waiting == batcher.unfinished == 0


def test_a_batch_is_limited_and_the_oldest_sentence_is_always_in_it(gate: Gate) -> None:
    batcher = Batcher(gate, batch_tokens=2 * TOKENS["dog"] + 1, queue=100, delay=0.0)
    block(batcher, gate)
    job = batcher.submit(queries("dog", "dog", TEXT[0], "dog"))
    gate.open.set()
    job.future.result(LIMIT)
    assert texts_of(gate.batches[1:]) == [["dog", "dog"], [TEXT[0]], ["dog"]]


def test_requests_for_other_numbers_of_hypotheses_are_decoded_apart(gate: Gate) -> None:
    batcher = Batcher(gate, batch_tokens=1000, queue=100, delay=0.0)
    block(batcher, gate)
    jobs = [batcher.submit(queries("dog"), n_best) for n_best in (1, 3, 1)]
    gate.open.set()
    assert [len(job.future.result(LIMIT)[0]) for job in jobs] == [1, 3, 1]
    assert [(batch.n_best, len(batch.queries)) for batch in gate.batches[1:]] == [(1, 2), (3, 1)]


def test_an_idle_thread_waits_for_company_until_the_batch_is_full(gate: Gate) -> None:
    gate.open.set()
    batcher = Batcher(gate, batch_tokens=TOKENS["dog"] + TOKENS["fox"], queue=100, delay=FOREVER)
    first = batcher.submit(queries("dog"))
    assert not first.future.done()
    second = batcher.submit(queries("fox"))
    assert len(first.future.result(LIMIT)) == len(second.future.result(LIMIT)) == 1
    assert texts_of(gate.batches) == [["dog", "fox"]]


def test_the_wait_for_company_ends(gate: Gate) -> None:
    gate.open.set()
    batcher = Batcher(gate, batch_tokens=1000, queue=100, delay=0.01)
    assert batcher.submit(queries("dog")).future.result(LIMIT)


def test_a_full_queue_takes_all_sentences_of_a_request_or_none(gate: Gate) -> None:
    batcher = Batcher(gate, batch_tokens=1000, queue=3, delay=0.0)
    block(batcher, gate)
    batcher.submit(queries("dog", "dog"))
    with pytest.raises(QueueFullError, match="2 sentences are waiting") as full:
        batcher.submit(queries("fox", "fox"))
    assert full.value.retry_after >= 1
    assert batcher.waiting == 2
    last = batcher.submit(queries("fox"))
    gate.open.set()
    assert last.future.result(LIMIT)


def test_a_dropped_request_is_not_decoded_and_makes_room(gate: Gate) -> None:
    batcher = Batcher(gate, batch_tokens=1000, queue=2, delay=0.0)
    block(batcher, gate)
    batcher.drop(batcher.submit(queries(TEXT[0], TEXT[1])))
    kept = batcher.submit(queries("dog"))
    gate.open.set()
    kept.future.result(LIMIT)
    assert texts_of(gate.batches[1:]) == [["dog"]]


def test_a_request_that_is_dropped_while_it_is_decoded_is_forgotten(gate: Gate) -> None:
    batcher = Batcher(gate, batch_tokens=1000, queue=9, delay=0.0)
    job = batcher.submit(queries("fox"))
    wait_until(lambda: len(gate.batches) == 1)
    batcher.drop(job)
    gate.open.set()
    assert batcher.submit(queries("dog")).future.result(LIMIT)
    assert not job.future.done()


def test_a_sentence_that_fails_fails_alone(model: LoadedModel, translator: Translator) -> None:
    release = threading.Event()

    def search(batch: Batch) -> list[Candidates]:
        assert release.wait(LIMIT)
        if any(query.text == "fox" for query in batch.queries):
            raise DataError("not fox")
        return model.search(batch)

    batcher = Batcher(search, batch_tokens=1000, queue=9, delay=FOREVER)
    jobs = [batcher.submit(queries(*texts)) for texts in (["dog"], ["dog", "fox", "dog"], [TEXT[0]])]
    batcher.stop()
    release.set()
    assert [row[0].text for job in (jobs[0], jobs[2]) for row in job.future.result(LIMIT)] == translator.translate(
        ["dog", TEXT[0]]
    )
    with pytest.raises(DataError, match="not fox"):
        jobs[1].future.result(LIMIT)
    assert batcher.unfinished == 0


def test_the_thread_survives_a_bug(model: LoadedModel) -> None:
    calls = iter([True, False])

    def search(batch: Batch) -> list[Candidates]:
        if next(calls):
            raise ZeroDivisionError
        return model.search(batch)

    batcher = Batcher(search, batch_tokens=1000, queue=9, delay=0.0)
    with pytest.raises(ZeroDivisionError):
        batcher.submit(queries("dog")).future.result(LIMIT)
    assert batcher.submit(queries("dog")).future.result(LIMIT)
    assert batcher.alive


def test_calls_take_their_turn(gate: Gate) -> None:
    batcher = Batcher(gate, batch_tokens=1000, queue=9, delay=0.0)
    block(batcher, gate)
    before = batcher.submit(queries("dog"))
    call = batcher.submit_call(lambda: (threading.current_thread().name, before.future.done()))
    after = batcher.submit(queries("dog"))
    gate.open.set()
    assert call.future.result(LIMIT) == ("decoding", True)
    assert after.future.result(LIMIT)
    failing = batcher.submit_call(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing.future.result(LIMIT)


def test_stopping_finishes_what_was_accepted(gate: Gate) -> None:
    batcher = Batcher(gate, batch_tokens=4, queue=9, delay=FOREVER)
    jobs = [batcher.submit(queries("dog")), batcher.submit(queries("fox", "fox"))]
    batcher.stop()
    with pytest.raises(StoppingError):
        batcher.submit(queries("dog"))
    gate.open.set()
    assert [len(job.future.result(LIMIT)) for job in jobs] == [1, 2]
    wait_until(lambda: not batcher.alive)


def test_abandoned_requests_are_told(gate: Gate) -> None:
    batcher = Batcher(gate, batch_tokens=4, queue=9, delay=0.0)
    block(batcher, gate)
    waiting = batcher.submit(queries("dog"))
    assert batcher.abandon(DataError("given up")) == 2
    with pytest.raises(DataError, match="given up"):
        waiting.future.result(LIMIT)
    gate.open.set()
    wait_until(lambda: not batcher.alive)
    assert batcher.abandon(StoppingError()) == 0
    assert texts_of(gate.batches) == [["fox"]]
