"""The attention page, as text and in a browser."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.models.attention import random_view
from support.services.browser import elements, open_page

from dstransformer.extras.paper.attention_pictures import MIN_WEIGHT, View, render_page

SRC, TGT = ("▁The", "▁law", "'s", "</script>"), ("▁Das", "▁Gesetz", "</s>")
VIEWS = {
    "encoder": random_view(SRC, SRC, kind="encoder", chosen=(1,)),
    "decoder": random_view(TGT, ("<s>", *TGT[:-1]), kind="decoder", chosen=()),
    "cross": random_view(TGT, SRC),
}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    facts = {"source": "The law's </script><b>", "target": "Das Gesetz", "model": "runs/base"}
    text = render_page(list(VIEWS.values()), facts, kind="cross", layer=2, heads=[1, 3], whole_words=False)
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    return tmp_path / "page.html"


def lines_of(view: View, layer: int, heads: tuple[int, ...]) -> set[tuple[int, int, int]]:
    """Head, query and key of each line that is dark enough to be drawn."""
    return {(head, *map(int, place)) for head in heads
            for place in np.argwhere(view.weights[layer - 1, head - 1] >= MIN_WEIGHT)}  # fmt: skip


def drawn(page: str) -> set[tuple[int, int, int]]:
    lines = elements(page, "line")
    found = {(int(line["data-head"]), int(line["data-query"]), int(line["data-key"])) for line in lines}
    assert len(found) == len(lines)
    return found


def point_at(word: str) -> str:
    return f'document.getElementById("{word}").dispatchEvent(new PointerEvent("pointerover", {{bubbles: true}}));'


def test_the_page_is_self_contained(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"https?://[^\"'\s]+", text) == ["http://www.w3.org/2000/svg"]  # a namespace, not a link
    assert not re.search(r"<link|@import|\bsrc=|\bhref=|url\(|fetch\(|XMLHttpRequest", text)
    assert text.count("</script>") == 2
    assert "<b>" not in text


def test_it_opens_with_the_chosen_view(page: Path, tmp_path: Path) -> None:
    dom = open_page(page, tmp_path)
    assert drawn(dom) == lines_of(VIEWS["cross"], 2, (1, 3))
    assert [word["id"] for word in elements(dom, "g") if "word" in word.get("class", "")] == [
        *(f"query-{number}" for number in range(len(TGT))), *(f"key-{number}" for number in range(len(SRC)))
    ]  # fmt: skip
    for word in ("Das", "Gesetz", "law", "'s", "&lt;/script&gt;", "predicted word"):
        assert word in dom
    inputs = elements(dom, "input")
    assert [one["value"] for one in inputs if one["name"] == "kind"] == ["encoder", "decoder", "cross"]
    assert [one["value"] for one in inputs if one["name"] == "layer"] == ["1", "2"]
    assert [one["value"] for one in inputs if one["name"] == "head"] == ["1", "2", "3"]


def test_a_line_has_its_weight_and_colour(page: Path, tmp_path: Path) -> None:
    dom = open_page(page, tmp_path)
    colours = {}
    for line in elements(dom, "line"):
        head, query, key = (int(line[f"data-{name}"]) for name in ("head", "query", "key"))
        weight = VIEWS["cross"].weights[1, head - 1, query, key]
        assert float(line["stroke-opacity"]) == pytest.approx(float(weight), abs=1e-4)
        colours.setdefault(head, set()).add(line["stroke"])
    assert [len(of_head) for of_head in colours.values()] == [1, 1]


def test_clicks_select_the_view(page: Path, tmp_path: Path) -> None:
    clicks = [f"document.querySelector('[name={name}][value=\"{value}\"]').click();"
              for name, value in (("kind", "decoder"), ("layer", 1), ("head", 1), ("head", 2))]  # fmt: skip
    dom = open_page(page, tmp_path, then="".join(clicks))
    assert drawn(dom) == lines_of(VIEWS["decoder"], 1, (2, 3))
    dom = open_page(page, tmp_path, then="document.getElementById('all').click();")
    assert drawn(dom) == lines_of(VIEWS["cross"], 2, (1, 2, 3))


def test_pointing_at_a_word_shows_only_its_lines_and_weights(page: Path, tmp_path: Path) -> None:
    view = VIEWS["cross"]
    dom = open_page(page, tmp_path, then=point_at("query-1"))
    assert drawn(dom) == {line for line in lines_of(view, 2, (1, 3)) if line[1] == 1}
    means = view.weights[1, [0, 2], 1].mean(axis=0)
    shares = re.findall(r'<g class="word[^"]*" id="(\w+-\d)".*?class="share"[^>]*>([^<]*)<', dom)
    assert {word: share for word, share in shares if share} == {
        f"key-{number}": f"{np.floor(mean * 100 + 0.5):.0f}%" for number, mean in enumerate(means) if mean >= 0.01
    }
    dom = open_page(page, tmp_path, then=point_at("key-2"))
    assert drawn(dom) == {line for line in lines_of(view, 2, (1, 3)) if line[2] == 2}


def test_chosen_words_stay_selected_until_escape(page: Path, tmp_path: Path) -> None:
    every = lines_of(VIEWS["encoder"], 1, (1, 2, 3))
    dom = open_page(page, tmp_path, address="#encoder/1/1,2,3")
    assert drawn(dom) == {line for line in every if line[1] == 1}
    escape = 'document.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape"}));'
    assert drawn(open_page(page, tmp_path, address="#encoder/1/1,2,3", then=escape)) == every


def test_a_layer_that_a_kind_lacks_cannot_be_chosen(tmp_path: Path) -> None:
    encoder = random_view(SRC, SRC, kind="encoder", chosen=())
    cross = replace(VIEWS["cross"], weights=VIEWS["cross"].weights[:1])
    facts = {"source": "a", "target": "b", "model": "runs/student"}
    text = render_page([encoder, cross], facts, kind="encoder", layer=2, heads=[1], whole_words=False)
    assert "runs/student: 2 + 1 layers, 3 heads" in text
    path = tmp_path / "uneven.html"
    path.write_text(text, encoding="utf-8")
    dom = open_page(path, tmp_path)
    assert drawn(dom) == lines_of(encoder, 2, (1,))
    assert not [one for one in elements(dom, "input") if "disabled" in one]
    dom = open_page(path, tmp_path, then="document.querySelector('[value=cross]').click();")
    assert drawn(dom) == lines_of(cross, 1, (1,))
    assert [one["value"] for one in elements(dom, "input") if "disabled" in one] == ["2"]
