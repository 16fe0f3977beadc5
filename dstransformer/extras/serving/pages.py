"""The HTML of the server: a page to type into, and the description of its interface. Neither needs a network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from dstransformer.extras.serving.schema import Health

#: Maximum hypotheses that the page offers to show.
MAX_ALTERNATIVES = 10


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


def render_docs(schema: Mapping[str, Any]) -> Page:
    """The description of the interface, from its OpenAPI schema."""
    return _render("docs.html", script="", info=schema["info"], operations=list(_operations(schema)))


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


def _operations(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            request = None if body is None else _resolve(schema, body)
            yield {
                "method": method.upper(),
                "path": path,
                "summary": operation["summary"],
                "request": None if request is None else _keys(schema, request),
                "examples": [] if request is None else [_curl(path, each) for each in request.get("examples", [])],
                "answers": [
                    {"status": status, "text": answer["description"], "keys": _answer_keys(schema, answer, status)}
                    for status, answer in sorted(operation["responses"].items())
                ],
            }


def _answer_keys(schema: Mapping[str, Any], answer: Mapping[str, Any], status: str) -> list[dict[str, str]]:
    body = answer.get("content", {}).get("application/json", {}).get("schema", {})
    return _keys(schema, _resolve(schema, body)) if body and status == "200" else []


def _keys(schema: Mapping[str, Any], of: Mapping[str, Any], before: str = "") -> list[dict[str, str]]:
    """The keys of an object and, indented by their path, of the objects in it."""
    found = []
    for name, key in of.get("properties", {}).items():
        required = name in of.get("required", ())
        found.append(
            {"name": before + name, "type": _type(key), "text": key.get("description", ""),
             "required": "yes" if required else ""}
        )  # fmt: skip
        inner = next((part["items"] for part in (key, *key.get("anyOf", ())) if "$ref" in part.get("items", {})), None)
        if inner is not None:
            found += _keys(schema, _resolve(schema, inner), f"{before}{name}[].")
    return found


def _type(key: Mapping[str, Any]) -> str:
    """The type of a key in words."""
    if "anyOf" in key:
        return " or ".join(dict.fromkeys(_type(part) for part in key["anyOf"] if part.get("type") != "null"))
    if "prefixItems" in key:
        return "pair"
    if key.get("type") == "array":
        of = _type(key["items"])
        return f"list of lists{of.removeprefix('list')}" if of.startswith("list ") else f"list of {of}s"
    return str(key.get("type", "object"))


def _resolve(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    """The definition that a ``$ref`` names."""
    if "$ref" not in part:
        return part
    found: Mapping[str, Any] = schema["components"]["schemas"][part["$ref"].rpartition("/")[2]]
    return found


def _curl(path: str, body: Any) -> str:
    data = json.dumps(body, ensure_ascii=False)
    return f"curl -H 'Content-Type: application/json' -d '{data}' http://127.0.0.1:8000{path}"
