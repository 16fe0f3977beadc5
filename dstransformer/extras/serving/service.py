"""Answers requests: checks each, queues its sentences and waits for their translations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar

from dstransformer import __version__
from dstransformer.data.directions import build_tags
from dstransformer.data.sentences import split_sentences, with_spaces
from dstransformer.errors import DataError, DstError, UserError, shown
from dstransformer.extras.markup.markup import MarkedText, parse_markup
from dstransformer.extras.markup.tag_placement import Translated, place_in_sentences, place_tags, with_breaks
from dstransformer.extras.serving.batcher import Batcher, Job, QueueFullError, StoppingError
from dstransformer.extras.serving.guard import RefusedError
from dstransformer.extras.serving.limits import ATTENTION_TOKENS, Limits
from dstransformer.extras.serving.metrics import ServerMetrics
from dstransformer.extras.serving.model import Candidate, Candidates, Model, Query
from dstransformer.extras.serving.model_process import ModelEndedError
from dstransformer.extras.serving.schema import AttentionRequest, Health, TranslateRequest

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

    async def translate(self, request: TranslateRequest, disconnect: WaitForDisconnect) -> dict[str, Any] | None:
        """The answer to a request, as :class:`TranslateAnswer`; None if the client has disconnected.

        Raises:
            RefusedError: The request cannot be answered.
        """
        given = [request.text] if isinstance(request.text, str) else request.text
        if request.alignments or request.markup:
            self._check_aligns()
        if request.split:
            return await self._translate_texts(given, request, disconnect)
        prefixes = self._prefixes(request, len(given))
        self._check_size(given, request)
        size = sum(map(len, given))
        sources = await _off_the_loop(read_sources, given, request.markup, size=size)
        texts = self._with_tags([source.text for source in sources], request.to)
        aligned = request.alignments or request.markup
        found = await self._search(texts, prefixes, disconnect, n_best=request.n_best or 1, alignments=aligned)
        if found is None:
            return None
        return {"translations": await _off_the_loop(_describe_all, request, sources, texts, found, size=size)}

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
        found: list[list[Candidate]] = [[] for _ in texts]
        if not indices:
            return found
        chosen = [queries[index] for index in indices]
        results: list[Candidates] | None = await self._wait(
            lambda: self.batcher.submit(chosen, n_best, alignments=alignments), disconnect
        )
        if results is None:
            return None
        for index, candidates in zip(indices, results, strict=True):
            if candidates is None:
                raise RefusedError(500, f"the model computes NaN for sentence {index + 1}: {shown(texts[index])}")
            found[index] = candidates
        return found

    async def _translate_texts(
        self, given: Sequence[str], request: TranslateRequest, disconnect: WaitForDisconnect
    ) -> dict[str, Any] | None:
        """As :meth:`translate`, of texts that are split."""
        if request.n_best is not None or request.prefix is not None or request.alignments:
            raise RefusedError(422, "split goes without n_best, prefix and alignments")
        self._check_size(given, request)
        _check_characters(given, len(given))
        size = sum(map(len, given))
        sources = await _off_the_loop(read_sources, given, request.markup, size=size)
        begins, texts = self._split_tags([with_breaks(one) for one in sources], request.to)
        try:
            sentences, owners = await _off_the_loop(split_sentences, texts, self._model.info.src_lang, size=size)
        except UserError as error:
            raise RefusedError(503, str(error)) from None
        tagged = [begins[owner] + sentence for owner, sentence in zip(owners, sentences, strict=True)]
        found: list[list[Candidate]] = []
        for first in range(0, len(tagged), self.limits.sentences):
            some = tagged[first : first + self.limits.sentences]
            results = await self._search(some, [""] * len(some), disconnect, alignments=request.markup)
            if results is None:
                return None
            found += results
        parts = _Parts(texts, begins, sentences, owners)
        joined = await _off_the_loop(_join_parts, sources, parts, found, request.markup, size=size)
        return {"translations": [{"text": text} for text in joined]}

    async def attention(self, request: AttentionRequest, disconnect: WaitForDisconnect) -> dict[str, Any] | None:
        """The answer to a request, as :class:`AttentionAnswer`; None if the client has disconnected.

        Raises:
            RefusedError: The request cannot be answered.
        """
        self._check_aligns()
        (source,) = self._with_tags([request.source], request.to)
        pair = await self._tokenize([source, request.target], ["", ""])
        for query, name in zip(pair, ("source", "target"), strict=True):
            if not 1 <= query.tokens <= ATTENTION_TOKENS:
                raise RefusedError(422, f"{name} has {query.tokens:,} tokens: give 1 to {ATTENTION_TOKENS}")
        answer: dict[str, Any] | None = await self._wait(
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
        both = [*texts, *filter(None, prefixes)]
        _check_characters(both, len(texts))
        ids = await _off_the_loop(self._encode, both, len(texts), size=sum(map(len, both)))
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


class _Parts(NamedTuple):
    """Texts that are divided: without their tags, and the tags; their sentences, and the index of the text of each."""

    texts: Sequence[str]
    begins: Sequence[str]
    sentences: Sequence[str]
    owners: Sequence[int]


def _join_parts(
    sources: Sequence[MarkedText], parts: _Parts, found: Sequence[Sequence[Candidate]], markup: bool
) -> list[str]:
    """The translations of texts, from those of their sentences."""
    divided: list[list[Translated]] = [[] for _ in sources]
    for owner, sentence, candidates in zip(parts.owners, parts.sentences, found, strict=True):
        added = len(parts.begins[owner].split())
        text, alignment = (candidates[0].text, candidates[0].alignment) if candidates else ("", None)
        links = [(src - added, tgt) for src, tgt in alignment or () if src >= added]
        divided[owner].append(Translated(sentence, text, links))
    if markup:
        return [place_in_sentences(*each) for each in zip(sources, parts.texts, divided, strict=True)]
    return [
        "".join(with_spaces(text, [one.sentence for one in found], [one.translation for one in found]))
        for text, found in zip(parts.texts, divided, strict=True)
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


def _describe_all(
    request: TranslateRequest, sources: Sequence[MarkedText], texts: Sequence[str], found: Sequence[Sequence[Candidate]]
) -> list[dict[str, Any]]:
    """The answers for the sentences, of which ``texts`` begin with the tags of their directions."""
    described = []
    for source, text, candidates in zip(sources, texts, found, strict=True):
        added = len(text.split()) - len(source.text.split())
        finished = [_finish(each, source, added, request) for each in candidates]
        described.append(_describe(finished, request.n_best) if finished else _describe_empty(source, request))
    return described


def _finish(candidate: Candidate, source: MarkedText, added: int, request: TranslateRequest) -> Candidate:
    """A translation as it was asked for: with tags, and with its alignment.

    Args:
        candidate: What the model has found.
        source: The sentence.
        added: Words that the server put before the sentence: its tag.
        request: The request.
    """
    links = [(src - added, tgt) for src, tgt in candidate.alignment or ()]
    text = place_tags(source, candidate.text, links) if request.markup else candidate.text
    return candidate._replace(text=text, alignment=links if request.alignments else None)


def _describe(candidates: Sequence[Candidate], n_best: int | None) -> dict[str, Any]:
    """The answer for one sentence."""
    described = []
    for each in candidates:
        links = {} if each.alignment is None else {"alignment": each.alignment}
        described.append({"text": each.text, "score": each.score, "log_probability": each.log_probability, **links})
    best = described[0]
    if n_best is None:
        return {name: value for name, value in best.items() if name in ("text", "alignment")}
    return {name: value for name, value in best.items() if name != "log_probability"} | {"n_best": described}


def _describe_empty(source: MarkedText, request: TranslateRequest) -> dict[str, Any]:
    """The answer for a sentence without words, which may have tags."""
    text = place_tags(source, "", ()) if request.markup else ""
    links: dict[str, Any] = {"alignment": []} if request.alignments else {}
    return {"text": text, **links} | ({} if request.n_best is None else {"n_best": []})
