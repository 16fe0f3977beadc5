"""The interactive page of attention: one HTML file with weights, styles and script inside; it needs no network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from dstransformer.paper.attention_view import FAINTEST, View, Weights, head_colour

#: A weight of 1 in the page, which holds weights as 16-bit integers.
SCALE = 65535


def render_page(
    views: Sequence[View], facts: Mapping[str, str], *, kind: str, layer: int, heads: Sequence[int], whole_words: bool
) -> str:
    """The page as HTML.

    Args:
        views: The kinds of attention that it offers, of the same layers and heads.
        facts: What the head of the page says: ``source``, ``target`` and ``model``.
        kind: The kind that it opens with.
        layer: The layer that it opens with, from 1.
        heads: The heads that it opens with, from 1.
        whole_words: Whether the pieces of words are merged.
    """
    layers, count = views[0].weights.shape[:2]
    data = {
        "kinds": {view.kind: _describe(view) for view in views},
        "layers": layers,
        "colours": [head_colour(head) for head in range(1, count + 1)],
        "faintest": FAINTEST,
        "scale": SCALE,
        "opening": {"kind": kind, "layer": layer, "heads": list(heads)},
    }
    environment = Environment(
        loader=PackageLoader("dstransformer.paper"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}  # keys in the order of the views
    page = environment.get_template("attention.html")
    return page.render(data=data, facts=facts, layers=layers, heads=count, faintest=FAINTEST, whole_words=whole_words)


def _describe(view: View) -> dict[str, Any]:
    return {
        "title": view.title,
        "sides": view.sides,
        "queries": view.queries,
        "keys": view.keys,
        "chosen": view.chosen or (),
        "weights": _encode(view.weights),
    }


def _encode(weights: Weights) -> str:
    """The weights as 16-bit integers, little-endian, in the order of the array, in base64."""
    return base64.b64encode(np.rint(weights * SCALE).astype("<u2").tobytes()).decode("ascii")
