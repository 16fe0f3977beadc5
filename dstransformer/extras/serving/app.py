"""The routes of the server, and its two pages: to type into, and of the interface. Neither needs a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection
from importlib.resources import files
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from dstransformer import __version__
from dstransformer.errors import shown
from dstransformer.extras.serving.guard import CLIENT_CLOSED_REQUEST, Guard, RefusedError
from dstransformer.extras.serving.schema import (
    EXPECTED,
    INTERFACE,
    AttentionAnswer,
    AttentionRequest,
    Health,
    Problem,
    TranslateAnswer,
    TranslateRequest,
)
from dstransformer.extras.serving.service import Service

DESCRIPTION = (
    "Translates sentences with a model of dstransformer. Sentences of different requests are decoded together. "
    "The answer to a request that fails has the key detail, one line."
)

PROBLEMS = {
    400: "The body is not JSON.",
    403: "Called by an unknown name, or from a page of another site.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The content type is not application/json.",
    422: "A key is wrong, or a sentence too long.",
    503: "The queue is full, the server is stopping, or memory ran out; the header Retry-After has seconds.",
    504: "There was no translation in time.",
}


#: Maximum hypotheses that the page offers to show.
MAX_ALTERNATIVES = 10


def build_app(service: Service, hosts: Collection[str] = ()) -> Guard:
    """The application; for ``hosts`` see :class:`Guard`."""
    app = FastAPI(title="dst serve", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None)
    _add_model(app, service)
    add_reports(app, service)
    _add_pages(app, service)
    _add_errors(app)
    paths = ("/", "/docs", "/openapi.json", "/translate", "/attention", "/healthz", "/metrics")
    return Guard(app, limits=service.limits, hosts=hosts, metrics=service.metrics, paths=paths)


def _add_model(app: FastAPI, service: Service) -> None:
    problems: dict[int | str, dict[str, Any]] = {
        status: {"model": Problem, "description": text} for status, text in PROBLEMS.items()
    }

    @app.post("/translate", response_model=TranslateAnswer, responses=problems, summary="Translate sentences")
    async def translate(body: TranslateRequest, request: Request) -> Response:
        return _answer(await service.translate(body, lambda: wait_for_disconnect(request)))

    @app.post("/attention", response_model=AttentionAnswer, responses=problems, summary="Attention between words")
    async def attention(body: AttentionRequest, request: Request) -> Response:
        return _answer(await service.attention(body, lambda: wait_for_disconnect(request)))


def add_reports(app: FastAPI, service: Service) -> None:
    """Add what watches the server: ``/healthz`` and ``/metrics``."""

    @app.get(
        "/healthz",
        response_model=Health,
        responses={503: {"model": Health, "description": "It takes no requests."}},
        summary="What is served",
    )
    async def healthz() -> Response:
        health = service.health()
        return JSONResponse(health.model_dump(), 200 if health.status == "ready" else 503)

    @app.get("/metrics", response_class=Response, summary="Counters for Prometheus")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _add_pages(app: FastAPI, service: Service) -> None:
    start = render_start(service.health(), service.beam_size)
    documentation = render_docs()

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return _page(start)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return _page(documentation)


def _page(page: Page) -> Response:
    return Response(page.html, media_type="text/html", headers={"content-security-policy": page.policy})


def _answer(answer: BaseModel | None) -> Response:
    """The response, without keys that have no value; ``None`` means that the client has disconnected."""
    if answer is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return JSONResponse(answer.model_dump(exclude_none=True))


async def wait_for_disconnect(request: Request) -> None:
    """Wait until the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return RefusedError(*_explain(error)).response()

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        known = {
            400: "the body is not JSON in UTF-8",
            404: "there is no such page; / has a page to type into, /docs describes the interface",
            405: f"{request.method} is not allowed here; see /docs",
        }
        return JSONResponse({"detail": known.get(error.status_code, error.detail)}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(_: Request, __: Exception) -> Response:
        return RefusedError(500, "internal error; the log of the server has more").response()


def _explain(error: RequestValidationError) -> tuple[int, str]:
    """Status and one line for a request that does not fit its schema. Values of the request are never repeated."""
    first = error.errors()[0]
    location, kind = first["loc"], first["type"]
    if kind == "json_invalid":
        return 400, f"the body is not JSON: {first['ctx']['error']}, at character {location[1] + 1}"
    if len(location) < 2:
        return 422, "the body must be a JSON object with the key text; see /docs"
    name = str(location[1])
    if kind == "extra_forbidden":
        return 422, f"there is no key {shown(name)}; see /docs"
    if kind == "missing":
        return 422, f"the key {name} is missing; it is {EXPECTED[name]}"
    return 422, f"{name} must be {EXPECTED[name]}"


class Page(NamedTuple):
    """A page with styles and script inside, and a Content-Security-Policy that allows only these."""

    html: str
    policy: str


def render_start(health: Health, beam_size: int) -> Page:
    """The page to type into."""
    languages = " → ".join(filter(None, (_codes(health, side) for side in ("src_lang", "tgt_lang"))))
    targets = {one["tag"] or one["tgt_lang"]: one["tgt_lang"] for one in health.directions}
    alternatives = min(beam_size, MAX_ALTERNATIVES)
    return _render(
        "start.html", script=_read("start.js"), health=health, languages=languages, targets=targets,
        max_alternatives=alternatives, sentences=int(health.limits["sentences"]),
    )  # fmt: skip


def _codes(health: Health, side: str) -> str | None:
    """The code of a side; of several directions all codes."""
    return ", ".join(dict.fromkeys(filter(None, (one[side] for one in health.directions)))) or getattr(health, side)


def render_docs() -> Page:
    """The description of the interface."""
    return _render(
        "docs.html", script="", version=__version__, description=DESCRIPTION, interface=INTERFACE, problems=PROBLEMS
    )


def _render(template: str, *, script: str, **values: Any) -> Page:
    style = _read("page.css")
    environment = Environment(
        loader=PackageLoader("dstransformer.extras.serving"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    html = environment.get_template(template).render(style=style, script=script, **values)
    scripts = f"script-src '{_digest(script)}'; connect-src 'self'; " if script else ""
    policy = (
        f"default-src 'none'; {scripts}style-src '{_digest(style)}'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html, policy)


def _read(name: str) -> str:
    return files("dstransformer.extras.serving").joinpath("templates", name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    """The hash by which a policy names what stands between two tags."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
