from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import cast

import pytest
from fastapi import FastAPI

from dstransformer.extras.serving.app import PROBLEMS, Page, build_app, render_docs, render_start
from dstransformer.extras.serving.loaded_model import LoadedModel
from dstransformer.extras.serving.model import Limits, fit_to_model
from dstransformer.extras.serving.service import Service


@pytest.fixture(scope="module")
def service(model: LoadedModel) -> Service:
    return Service(model, fit_to_model(Limits(), model.info))


@pytest.fixture(scope="module", params=["start", "docs"])
def page(request: pytest.FixtureRequest, service: Service) -> Page:
    if request.param == "start":
        return render_start(service.health(), service.beam_size)
    return render_docs()


def test_the_policy_names_exactly_what_the_page_holds(page: Page) -> None:
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", page.html, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inside]
        named = re.findall(rf"{directive} 'sha256-([^']+)'", page.policy)
        assert named == hashes, directive
    assert page.policy.startswith("default-src 'none'; ")
    assert "unsafe" not in page.policy


def test_nothing_is_loaded_from_elsewhere(page: Page) -> None:
    assert not re.findall(r"""(?:src|href|action)=["']?(?:https?:)?//""", page.html)
    assert "@import" not in page.html
    assert " style=" not in page.html
    assert not re.findall(r"\son\w+=", page.html)


def test_the_description_has_every_route_key_and_status(service: Service) -> None:
    html = render_docs().html
    schema = cast(FastAPI, build_app(service).app).openapi()
    routes = {f"{method.upper()} {path}" for path, methods in schema["paths"].items() for method in methods}
    keys = {key for part in schema["components"]["schemas"].values() for key in part.get("properties", ())}
    others = ("curl -H", "Retry-After", *map(str, PROBLEMS))
    missing = [
        expected
        for expected in (*routes, *keys - {"loc", "msg", "type", "ctx", "input"}, *others)
        if expected not in html
    ]
    assert missing == []
    assert "None" not in html


def test_names_are_escaped(service: Service, tmp_path: Path) -> None:
    health = service.health().model_copy(update={"model": "<b>&", "src_lang": "<i>"})
    html = render_start(health, 4).html
    assert "&lt;b&gt;&amp;" in html
    assert "<b>" not in html
    assert "<i>" not in html
