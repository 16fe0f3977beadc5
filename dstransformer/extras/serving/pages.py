"""The HTML of the server: a page to type into, and the description of its interface. Neither needs a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from dstransformer import __version__
from dstransformer.extras.serving.schema import INTERFACE, Health

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


def render_docs(description: str, problems: Mapping[int, str]) -> Page:
    """The description of the interface.

    Args:
        description: What the server does.
        problems: The statuses of answers other than success, with their reasons.
    """
    return _render(
        "docs.html", script="", version=__version__, description=description, interface=INTERFACE, problems=problems
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
