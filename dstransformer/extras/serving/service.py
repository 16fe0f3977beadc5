"""Answers requests: checks each, queues its sentences and waits for their translations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from dstransformer import __version__
from dstransformer.data.directions import build_tags
from dstransformer.data.sentences import split_sentences, with_spaces
from dstransformer.errors import DataError, DstError, UserError, shown
from dstransformer.extras.markup.markup import MarkedText, parse_markup
from dstransformer.extras.markup.tag_placement import Translated, place_in_sentences, place_tags, with_breaks
from dstransformer.extras.serving.batcher import Batcher, Job, QueueFullError, StoppingError
from dstransformer.extras.serving.guard import RefusedError
from dstransformer.extras.serving.metrics import ServerMetrics
from dstransformer.extras.serving.model import ATTENTION_TOKENS, Candidate, Candidates, Limits, Model, Query
from dstransformer.extras.serving.model_process import ModelEndedError
from dstransformer.extras.serving.schema import (
    AttentionAnswer,
    AttentionRequest,
    Health,
    Hypothesis,
    TranslateAnswer,
    TranslateRequest,
    Translation,
)

#: Texts with more characters are worked on in another thread, so that other requests need not wait.
_LONG_TEXT = 10_000

#: Settings of the search that have no effect: the server refuses longer inputs, by a limit of its own.
_UNUSED = ("max_input_tokens", "long_inputs")

Result = TypeVar("Result")

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
        folder = info.path.resolve()
        self._facts: dict[str, Any] = {
            "model": folder.parent.name if folder.name == "bundle" else folder.name,
            "weights_sha256": info.weights_sha256,
            "src_lang": info.src_lang,
            "tgt_lang": info.tgt_lang,
            "directions": [asdict(one) for one in info.directions],
            "guided_alignment": info.is_guided,
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

    async def translate(self, request: TranslateRequest, disconnect: WaitForDisconnect) -> TranslateAnswer | None:
        """The answer to a request; None if the client has disconnected.

        Raises:
            RefusedError: The request cannot be answered.
        """
        lines = [request.text] if isinstance(request.text, str) else request.text
        if request.alignments or request.markup:
            self._check_aligns()
        if request.split:
            return await self._translate_texts(lines, request, disconnect)
        prefixes = request.prefix if isinstance(request.prefix, list) else [request.prefix or ""] * len(lines)
        if len(prefixes) != len(lines):
            raise RefusedError(422, f"prefix has {len(prefixes)} texts for {len(lines)} sentences: give one for each")
        self._check_size(lines, request)
        size = sum(map(len, lines))
        sources = await _off_the_loop(read_sources, lines, request.markup, size=size)
        texts = self._with_tags([source.text for source in sources], request.to)
        aligned = request.alignments or request.markup
        lists = await self._search(texts, prefixes, disconnect, n_best=request.n_best or 1, alignments=aligned)
        if lists is None:
            return None

        def describe() -> list[Translation]:
            return [_describe(request, *each) for each in zip(sources, texts, lists, strict=True)]

        return TranslateAnswer(translations=await _off_the_loop(describe, size=size))

    async def _search(
        self,
        texts: Sequence[str],
        prefixes: Sequence[str],
        disconnect: WaitForDisconnect,
        *,
        n_best: int = 1,
        alignments: bool,
    ) -> list[list[Candidate]] | None:
        """The translations of each text, none of one without words; None if the client has disconnected."""
        queries = await self._tokenize(texts, prefixes)
        indices = [index for index, query in enumerate(queries) if query.tokens]
        lists: list[list[Candidate]] = [[] for _ in texts]
        if not indices:
            return lists
        chosen = [queries[index] for index in indices]
        results: list[Candidates] | None = await self._wait(
            lambda: self.batcher.submit(chosen, n_best, alignments=alignments), disconnect
        )
        if results is None:
            return None
        for index, candidates in zip(indices, results, strict=True):
            if candidates is None:
                raise RefusedError(500, f"the model computes NaN for sentence {index + 1}: {shown(texts[index])}")
            lists[index] = candidates
        return lists

    async def _translate_texts(
        self, lines: Sequence[str], request: TranslateRequest, disconnect: WaitForDisconnect
    ) -> TranslateAnswer | None:
        """As :meth:`translate`, of texts that are split."""
        if request.n_best is not None or request.prefix is not None or request.alignments:
            raise RefusedError(422, "split goes without n_best, prefix and alignments")
        self._check_size(lines, request)
        _check_characters(lines, len(lines))
        size = sum(map(len, lines))
        sources = await _off_the_loop(read_sources, lines, request.markup, size=size)
        begins, texts = self._split_tags([with_breaks(one) for one in sources], request.to)
        try:
            sentences, owners = await _off_the_loop(split_sentences, texts, self._model.info.src_lang, size=size)
        except UserError as error:
            raise RefusedError(503, str(error)) from None
        parts: list[list[Translated]] = [[] for _ in texts]
        for first in range(0, len(sentences), self.limits.sentences):
            chunk = slice(first, first + self.limits.sentences)
            tagged = [begins[owner] + sentence for owner, sentence in zip(owners[chunk], sentences[chunk], strict=True)]
            lists = await self._search(tagged, [""] * len(tagged), disconnect, alignments=request.markup)
            if lists is None:
                return None
            for owner, sentence, candidates in zip(owners[chunk], sentences[chunk], lists, strict=True):
                added = len(begins[owner].split())
                text, alignment = (candidates[0].text, candidates[0].alignment) if candidates else ("", None)
                links = [(src - added, tgt) for src, tgt in alignment or () if src >= added]
                parts[owner].append(Translated(sentence, text, links))
        joined = await _off_the_loop(_join, sources, texts, parts, request.markup, size=size)
        return TranslateAnswer(translations=[Translation(text=text) for text in joined])

    async def attention(self, request: AttentionRequest, disconnect: WaitForDisconnect) -> AttentionAnswer | None:
        """The answer to a request; None if the client has disconnected.

        Raises:
            RefusedError: The request cannot be answered.
        """
        self._check_aligns()
        (source,) = self._with_tags([request.source], request.to)
        pair = await self._tokenize([source, request.target], ["", ""])
        for query, name in zip(pair, ("source", "target"), strict=True):
            if not 1 <= query.tokens <= ATTENTION_TOKENS:
                raise RefusedError(422, f"{name} has {query.tokens:,} tokens: give 1 to {ATTENTION_TOKENS}")
        answer: AttentionAnswer | None = await self._wait(
            lambda: self.batcher.submit_call(lambda: self._model.attention(source, request.target)), disconnect
        )
        return answer

    def _check_aligns(self) -> None:
        if not self._model.info.aligns:
            raise RefusedError(422, "CTranslate2 gives no attention, alignments or places of tags: use --engine torch")

    def _with_tags(self, texts: Sequence[str], to: str | None) -> list[str]:
        """The texts, each with the tag of its direction if the model has several; errors as of :meth:`_split_tags`."""
        return [begin + text for begin, text in zip(*self._split_tags(texts, to), strict=True)]

    def _split_tags(self, texts: Sequence[str], to: str | None) -> tuple[list[str], list[str]]:
        """What the texts begin with, a tag and a space or nothing, and the rests; see :meth:`Tags.split`.

        Raises:
            RefusedError: The model does not translate into that language, or a tag is missing or unknown.
        """
        info = self._model.info
        try:
            tags = build_tags(info.directions, info.src_lang, info.tgt_lang, to, '"to"')
            return ([""] * len(texts), list(texts)) if tags is None else tags.split(texts, 1)
        except UserError as error:
            raise RefusedError(422, str(error)) from None

    def _check_size(self, texts: Sequence[str], request: TranslateRequest) -> None:
        if len(texts) > self.limits.sentences:
            raise RefusedError(
                422,
                f"there are {len(texts):,} texts; this server takes at most {self.limits.sentences:,} a request "
                "(--max-sentences)",
            )
        if request.n_best is not None and request.n_best > self.beam_size:
            raise RefusedError(422, f"n_best is {request.n_best}, but the beam has {self.beam_size} hypotheses")

    async def _tokenize(self, texts: Sequence[str], prefixes: Sequence[str]) -> list[Query]:
        """The sentences with their lengths.

        Raises:
            RefusedError: A sentence or a prefix is too long, or not text.
        """
        tgt_texts = list(filter(None, prefixes))
        _check_characters([*texts, *tgt_texts], len(texts))

        def encode() -> list[list[int]]:
            return self._tokenizer.src.encode(texts, threads=1) + self._tokenizer.encode(tgt_texts, threads=1)

        ids = await _off_the_loop(encode, size=sum(map(len, [*texts, *tgt_texts])))
        max_tokens = self.limits.sentence_tokens
        for index, row in enumerate(ids):
            if len(row) > max_tokens:
                name = _label(index, len(texts))
                raise RefusedError(
                    422, f"{name} has {len(row):,} tokens; this server takes at most {max_tokens:,}: split it"
                )
        return [Query(text, len(row), prefix) for text, row, prefix in zip(texts, ids, prefixes, strict=False)]

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


async def _off_the_loop(work: Callable[..., Result], *arguments: Any, size: int) -> Result:
    """Call a function; in another thread if its texts have many characters."""
    return await asyncio.to_thread(work, *arguments) if size > _LONG_TEXT else work(*arguments)


def read_sources(texts: Sequence[str], markup: bool) -> list[MarkedText]:
    """The sentences of a request, and their tags if they have markup.

    Raises:
        RefusedError: The tags of a sentence are not well-formed.
    """
    if not markup:
        return [MarkedText(text, ()) for text in texts]
    _check_characters(texts, len(texts))
    try:
        return [parse_markup(text, f"sentence {number}") for number, text in enumerate(texts, 1)]
    except DataError as error:
        raise RefusedError(422, shown(error, quote=False, limit=400)) from None


def _join(
    sources: Sequence[MarkedText], texts: Sequence[str], parts: Sequence[Sequence[Translated]], markup: bool
) -> list[str]:
    """The translations of texts, from those of their sentences."""
    if markup:
        return [place_in_sentences(*each) for each in zip(sources, texts, parts, strict=True)]
    return [
        "".join(with_spaces(text, [part.sentence for part in of_text], [part.translation for part in of_text]))
        for text, of_text in zip(texts, parts, strict=True)
    ]


def _check_characters(texts: Sequence[str], sentences: int) -> None:
    for index, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can spell halves of surrogate pairs, which UTF-8 cannot
            label = _label(index, sentences)
            raise RefusedError(422, f"{label} has half a surrogate pair, which is no character") from None


def _label(index: int, sentences: int) -> str:
    return f"sentence {index + 1}" if index < sentences else "a prefix"


def _describe(request: TranslateRequest, source: MarkedText, text: str, candidates: Sequence[Candidate]) -> Translation:
    """The translation of a sentence as it was asked for: with tags, alignment and hypotheses.

    ``text`` is the sentence after the tag of its direction, whose words links do not count. A sentence without words,
    which may have tags, has no candidates.
    """
    added = len(text.split()) - len(source.text.split())
    hypotheses = []
    for candidate in candidates or [Candidate("", 0.0, 0.0, 0)]:
        links = [(src - added, tgt) for src, tgt in candidate.alignment or ()]
        hypotheses.append(
            Hypothesis(
                text=place_tags(source, candidate.text, links) if request.markup else candidate.text,
                score=candidate.score,
                log_probability=candidate.log_probability,
                alignment=links if request.alignments else None,
            )
        )
    best = hypotheses[0]
    if request.n_best is None:
        return Translation(text=best.text, alignment=best.alignment)
    score = best.score if candidates else None
    return Translation(text=best.text, score=score, alignment=best.alignment, n_best=hypotheses[: len(candidates)])
