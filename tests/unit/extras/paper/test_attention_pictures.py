"""The pictures show the chosen layer, heads and words."""

from __future__ import annotations

import re
import struct

import pytest
from support.models.attention import random_view

from dstransformer.extras.paper.attention_pictures import (
    MIN_WEIGHT,
    draw_lines,
    draw_maps,
    head_colour,
    warn_of_missing_letters,
)

WORDS, KEYS = ("Die", "Straßenbahn", "$x_1$", "</s>"), ("The", "tram", "costs", "$1", "</s>")


def texts(svg: bytes) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg.decode())


def strokes(svg: bytes) -> list[tuple[str, int]]:
    """Colour and opacity in percent of each line."""
    found = []
    for path, style in re.findall(r'<path d="([^"]*)"[^>]*style="([^"]*stroke-width: 1\.7[^"]*)"', svg.decode()):
        colour, opacity = re.search(r"stroke: (#\w{6})", style), re.search(r"stroke-opacity: ([\d.]+)", style)
        assert colour is not None
        found += [(colour[1], round(100 * float(opacity[1])) if opacity else 100)] * path.count("M")
    return found


def png_size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_lines_are_the_weights_of_the_chosen_layer_and_heads() -> None:
    view = random_view(WORDS, KEYS)
    images = draw_lines(view, 2, [1, 3])
    assert sorted(strokes(images["svg"])) == sorted(
        (head_colour(head), round(100 * float(weight)))
        for head in (1, 3)
        for weight in view.weights[1, head - 1].flat
        if weight >= MIN_WEIGHT
    )
    assert min(png_size(images["png"])) > 100


def test_lines_are_labelled() -> None:
    found = texts(draw_lines(random_view(WORDS, KEYS), 2, [1, 3])["svg"])
    assert "encoder-decoder attention, layer 2 of 2" in found
    assert {"1", "3", "heads", "Straßenbahn", "$x_1$", "$1", "predicted word"} <= set(found)
    assert found.count("&lt;/s&gt;") == 2


def test_only_lines_of_the_chosen_words_are_drawn() -> None:
    view = random_view(WORDS, KEYS, chosen=(1,))
    found = strokes(draw_lines(view, 1, [2])["svg"])
    assert len(found) == (view.weights[0, 1, 1] >= MIN_WEIGHT).sum()


def test_maps_have_a_panel_for_each_head() -> None:
    images = draw_maps(random_view(WORDS, KEYS, kind="decoder"), 1, [1, 2, 3])
    found = texts(images["svg"])
    assert "decoder self-attention, layer 1 of 2" in found
    assert {"head 1", "head 2", "head 3", "Straßenbahn", "tram", "100%"} <= set(found)
    assert images["svg"].count(b"<image") >= 3


def test_characters_missing_from_the_font_are_named(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_missing_letters([random_view(WORDS, KEYS)])
    assert not caplog.records
    warn_of_missing_letters([random_view(("中文", "Haus"), KEYS)])
    assert "the font of the PNG pictures lacks 中 文" in caplog.text
