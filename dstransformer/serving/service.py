"""Answers requests: checks each, queues its sentences and waits for their translations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dstransformer import __version__
from dstransformer.corpus.directions import build_tags
from dstransformer.errors import DataError, DstError, UserError, shown
from dstransformer.serving.batcher import Batcher, Job, QueueFullError, StoppingError
from dstransformer.serving.guard import RefusedError
from dstransformer.serving.limits import ATTENTION_TOKENS, Limits
from dstransformer.serving.metrics import ServerMetrics
from dstransformer.serving.model import Candidate, Candidates, Model, Query
from dstransformer.serving.model_process import ModelEndedError
from dstransformer.serving.schema import AttentionRequest, Health, TranslateRequest

#: Texts with more characters are tokenized in another thread, so that other requests need not wait.
_LONG_TEXT = 10_000

#: Settings of the search that have no effect: the server refuses longer inputs, by a limit of its own.
_UNUSED = ("max_input_tokens", "long_inputs")

#: Returns when the client closes the connection.
WaitForDisconnect = Callable[[], Coroutine[Any, Any, None]]


class Service:
    """A model that answers requests.

    Attributes:
        metrics: Its counters.
        limits: Its limits.
        stopping: Whether it takes no more requests.
        beam_size: Maximum hypotheses of a sentence.

    Args:
        model: The model. From here on only the batcher's thread uses it.
        limits: Its limits.
    """

    def __init__(self, model: Model, limits: Limits) -> None:
        self._model = model
        self.limits = limits
        self.metrics = ServerMetrics()
        self.stopping = False
        info = model.info
        self._tokenizer = info.tokenizer
        self.beam_size: int = info.decoding["beam_size"]
        self.batcher = Batcher(
            model.search,
            batch_tokens=info.batch_tokens,
            queue=limits.queue,
            delay=limits.batch_delay,
            report=self.metrics.count_batch,
        )
        self.metrics.watch_queue(lambda: self.batcher.waiting, lambda: self.batcher.unfinished)
        self._facts: dict[str, Any] = {
            "model": _name(info.path),
            "weights_sha256": info.weights_sha256,
            "src_lang": info.src_lang,
            "tgt_lang": info.tgt_lang,
            "directions": [asdict(one) for one in info.directions],
            "decoding": {name: value for name, value in info.decoding.items() if name not in _UNUSED},
            "limits": vars(limits),
            "version": __version__,
        }

    @property
    def failure(self) -> str | None:
        """Why the server can no longer translate; None if it can."""
        if self.batcher.alive or self.stopping:
            return self._model.ended
        return self._model.ended or "the thread that waits for the model has ended"

    def health(self) -> Health:
        """What is served, and whether it takes requests."""
        status = "failed" if self.failure is not None else "stopping" if self.stopping else "ready"
        return Health(status=status, **self._facts)

    def stop(self) -> None:
        """Refuse requests from now on; accepted ones are finished."""
        self.stopping = True
        self.batcher.stop()

    def give_up(self) -> int:
        """Stop, and answer unfinished requests with 503; returns their number."""
        self.stopping = True
        failure = self.failure
        return self.batcher.abandon(StoppingError() if failure is None else ModelEndedError(failure))

    async def translate(self, request: TranslateRequest, disconnect: WaitForDisconnect) -> dict[str, Any] | None:
        """The answer to a request, as :class:`TranslateAnswer`; None if the client has disconnected.

        Raises:
            RefusedError: The request cannot be answered.
        """
        texts = [request.text] if isinstance(request.text, str) else request.text
        prefixes = self._prefixes(request, len(texts))
        self._check_size(texts, request)
        texts = self._with_tags(texts, request.to)
        queries = await self._tokenize(texts, prefixes)
        indices = [index for index, query in enumerate(queries) if query.tokens]
        found: list[list[Candidate]] = [[] for _ in texts]
        if indices:
            results: list[Candidates] | None = await self._wait(
                lambda: self.batcher.submit([queries[index] for index in indices], request.n_best or 1), disconnect
            )
            if results is None:
                return None
            for index, candidates in zip(indices, results, strict=True):
                if candidates is None:
                    raise RefusedError(500, f"the model computes NaN for sentence {index + 1}: {shown(texts[index])}")
                found[index] = candidates
        return {"translations": [_describe(candidates, request.n_best) for candidates in found]}

    async def attention(self, request: AttentionRequest, disconnect: WaitForDisconnect) -> dict[str, Any] | None:
        """The answer to a request, as :class:`AttentionAnswer`; None if the client has disconnected.

        Raises:
            RefusedError: The request cannot be answered.
        """
        (source,) = self._with_tags([request.source], request.to)
        pair = await self._tokenize([source, request.target], ["", ""])
        for query, name in zip(pair, ("source", "target"), strict=True):
            if not 1 <= query.tokens <= ATTENTION_TOKENS:
                raise RefusedError(422, f"{name} has {query.tokens:,} tokens: give 1 to {ATTENTION_TOKENS}")
        answer: dict[str, Any] | None = await self._wait(
            lambda: self.batcher.submit_call(lambda: self._model.attention(source, request.target)), disconnect
        )
        return answer

    def _with_tags(self, texts: Sequence[str], to: str | None) -> list[str]:
        """The texts, each with the tag of its direction if the model has several.

        Raises:
            RefusedError: The model does not translate into that language, or a tag is missing or unknown.
        """
        info = self._model.info
        try:
            tags = build_tags(info.directions, info.src_lang, info.tgt_lang, to, '"to"')
            return list(texts) if tags is None else tags.join(texts, 1)
        except UserError as error:
            raise RefusedError(422, str(error)) from None

    def _prefixes(self, request: TranslateRequest, count: int) -> list[str]:
        if isinstance(request.prefix, list):
            if len(request.prefix) != count:
                raise RefusedError(
                    422, f"prefix has {len(request.prefix)} texts for {count} sentences: give one for each"
                )
            return request.prefix
        return [request.prefix or ""] * count

    def _check_size(self, texts: Sequence[str], request: TranslateRequest) -> None:
        if len(texts) > self.limits.sentences:
            raise RefusedError(
                422,
                f"text has {len(texts):,} sentences; this server takes at most {self.limits.sentences:,} a request",
            )
        if request.n_best is not None and request.n_best > self.beam_size:
            raise RefusedError(422, f"n_best is {request.n_best}, but the beam has {self.beam_size} hypotheses")

    async def _tokenize(self, texts: Sequence[str], prefixes: Sequence[str]) -> list[Query]:
        """The sentences with their lengths.

        Raises:
            RefusedError: A sentence or a prefix is too long, or not text.
        """
        both = [*texts, *filter(None, prefixes)]
        for index, text in enumerate(both):
            if not _is_text(text):
                raise RefusedError(422, f"{_label(index, len(texts))} has half a surrogate pair, which is no character")
        if sum(map(len, both)) > _LONG_TEXT:
            ids = await asyncio.to_thread(self._encode, both, len(texts))
        else:
            ids = self._encode(both, len(texts))
        max_tokens = self.limits.sentence_tokens
        for index, row in enumerate(ids):
            if len(row) > max_tokens:
                name = _label(index, len(texts))
                raise RefusedError(
                    422, f"{name} has {len(row):,} tokens; this server takes at most {max_tokens:,}: split it"
                )
        return [Query(text, len(row), prefix) for text, row, prefix in zip(texts, ids, prefixes, strict=False)]

    def _encode(self, both: Sequence[str], texts: int) -> list[list[int]]:
        """The ids of the first ``texts``, which are sources, and of the rest, which are prefixes of targets."""
        src = self._tokenizer.src.encode(both[:texts], threads=1)
        return src + self._tokenizer.encode(both[texts:], threads=1)

    async def _wait(self, submit: Callable[[], Job], disconnect: WaitForDisconnect) -> Any:
        """Queue work and wait for its result; None if the client disconnects first.

        Raises:
            RefusedError: The work was not accepted, took too long or failed.
        """
        try:
            job = submit()
        except QueueFullError as full:
            raise RefusedError(503, f"the server is busy: {full}; try again later", full.retry_after) from None
        except StoppingError:
            raise RefusedError(503, "the server is stopping", 1) from None
        result = asyncio.wrap_future(job.future)
        disconnected = asyncio.ensure_future(disconnect())
        try:
            await asyncio.wait((result, disconnected), timeout=self.limits.timeout, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                return _result(result)
            self.batcher.drop(job)
            if disconnected.done():
                return None
            raise RefusedError(504, f"there was no translation within {self.limits.timeout:g} s; send fewer sentences")
        finally:
            disconnected.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await disconnected


def _result(result: asyncio.Future[Any]) -> Any:
    """What the work gave.

    Raises:
        RefusedError: The work failed for a reason that the user can know. Any other error is a bug and is re-raised.
    """
    try:
        return result.result()
    except StoppingError:
        raise RefusedError(503, "the server was stopped before the translation was complete", 1) from None
    except DataError as error:
        raise RefusedError(422, shown(error, quote=False, limit=400)) from None
    except DstError as error:
        raise RefusedError(503, shown(error, quote=False, limit=400), 1) from None


def _label(index: int, sentences: int) -> str:
    return f"sentence {index + 1}" if index < sentences else "a prefix"


def _is_text(text: str) -> bool:
    """JSON can spell halves of surrogate pairs, which UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _describe(candidates: Sequence[Candidate], n_best: int | None) -> dict[str, Any]:
    """The answer for one sentence; an empty one has no candidates."""
    text = candidates[0].text if candidates else ""
    if n_best is None:
        return {"text": text}
    scores = {"score": candidates[0].score} if candidates else {}
    hypotheses = [{"text": each.text, "score": each.score, "log_probability": each.log_probability}
                  for each in candidates]  # fmt: skip
    return {"text": text, **scores, "n_best": hypotheses}


def _name(bundle: Path) -> str:
    """Of the folder; of the run or the checkpoint if the folder is only called ``bundle``."""
    path = bundle.resolve()
    return path.parent.name if path.name == "bundle" else path.name
