"""No request can hurt the server: it is answered, or refused in one line."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.faults.fuzzing import Target, fuzz, inputs_for_each
from support.services.serving import save_small_bundle

from dstransformer.decoding import Translator
from dstransformer.extras.serving.app import build_app
from dstransformer.extras.serving.guard import Guard
from dstransformer.extras.serving.loaded_model import LoadedModel
from dstransformer.extras.serving.model import Limits, fit_to_model
from dstransformer.extras.serving.service import Service
from dstransformer.model import open_bundle

#: 500 is missing: an internal error.
EXPECTED = (200, 400, 408, 413, 415, 422, 503, 504)


def make_requests(folder: Path) -> None:
    save_small_bundle(folder / "bundle")
    (folder / "translate.json").write_text(json.dumps({"text": ["A dog.", "Two."], "n_best": 2, "prefix": "Ein"}))
    (folder / "attention.json").write_text(json.dumps({"source": "A dog.", "target": "Ein Hund."}))


@cache
def app_of(bundle: Path) -> Guard:
    opened = open_bundle(bundle)
    model = LoadedModel(opened, Translator.load(opened, device="cpu", keep_nan=True))
    return build_app(Service(model, fit_to_model(Limits(), model.info)))


async def answer(app: Guard, path: str, body: bytes) -> tuple[int, bytes]:
    """The status and the body of the answer to a POST, through ASGI as uvicorn calls it."""
    headers = [(b"content-type", b"application/json"), (b"host", b"127.0.0.1")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "root_path": ""}
    arriving = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not arriving:
            await asyncio.Event().wait()  # the client waits
        return arriving.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


def ask(folder: Path) -> None:
    app = app_of(folder / "bundle")
    for name in ("translate", "attention"):
        status, content = asyncio.run(answer(app, f"/{name}", (folder / f"{name}.json").read_bytes()))
        assert status in EXPECTED, content
        if status != 200:
            assert "\n" not in json.loads(content)["detail"]


@pytest.mark.slow
def test_a_damaged_request_is_answered_or_refused_in_one_line(tmp_path: Path) -> None:
    fuzz(Target("requests", make_requests, ask, ("*.json",)), tmp_path, inputs_for_each(20))
