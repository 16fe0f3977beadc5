"""Sentences with inline tags, translated by a model of random weights."""

from __future__ import annotations

import html
import re

import pytest
from support.data.corpora import TEXT
from support.models.threads import one_thread  # noqa: F401
from support.services.serving import save_small_bundle

from dstransformer.data import Direction
from dstransformer.data.directions import Tags
from dstransformer.decoding import Translator
from dstransformer.errors import DataError
from dstransformer.extras.markup.translator import MarkupTranslator
from dstransformer.model import Bundle, open_bundle

_TAG = re.compile("<[^<>]*>")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(save_small_bundle(tmp_path_factory.mktemp("markup") / "small"))


@pytest.fixture
def translator(opened: Bundle) -> MarkupTranslator:
    return MarkupTranslator.load(opened, device="cpu")


def test_tags_are_put_back(opened: Bundle, translator: MarkupTranslator) -> None:
    lines = [f"<p>{TEXT[0]}<br/></p>", "The <b>dog</b> &amp; <i></i>fox", "", "<b></b>", "a &lt; b"]
    plain = Translator.load(opened, device="cpu").translate([TEXT[0], "The dog & fox", "", "", "a < b"])
    found = translator.search(lines)
    for line, (output, *_), text in zip(lines, found, plain, strict=True):
        assert html.unescape(_TAG.sub("", output.text)) == text
        assert sorted(_TAG.findall(output.text)) == sorted(_TAG.findall(line))
        words = html.unescape(_TAG.sub(" ", line)).split()
        assert output.alignment is not None
        assert all(src < len(words) and tgt < len(text.split()) for src, tgt in output.alignment)
    assert found[3][0].text == "<b></b>"
    assert len(translator.search(lines[:1], n_best=2)[0]) == 2


def test_parts_of_a_long_sentence_keep_its_tags(opened: Bundle, translator: MarkupTranslator) -> None:
    limits = {"max_input_tokens": 6, "long_inputs": "split"}
    line = "The <b>dog jumps. The</b> fox jumps. A lazy dog."
    settings = opened.decoding.model_copy(update=limits)
    plain = Translator.load(opened, device="cpu", settings=settings).translate([_TAG.sub("", line)])
    found = MarkupTranslator.load(opened, device="cpu", settings=settings).translate([line])
    assert re.sub("</?b>", "", found[0]) == html.escape(plain[0], quote=False)


def test_texts_of_several_sentences(opened: Bundle, translator: MarkupTranslator) -> None:
    pytest.importorskip("sentencex", reason="needs sentencex: pip install 'dstransformer[split]'")
    first, second = Translator.load(opened, device="cpu").translate([TEXT[0], TEXT[2]])
    text = f"<h1>{TEXT[0]}</h1><p><i>{TEXT[2]}</i>  {TEXT[0]}</p>"
    assert translator.translate([text, "", "<p></p>"], split=True) == [
        f"<h1>{first}</h1> <p><i>{second}</i>  {first}</p>", "", "<p></p>"
    ]  # fmt: skip
    page = f"<style>p > b {{ }}</style><p>{TEXT[0]}</p><pre>\n  {TEXT[2]}\n{TEXT[0]}</pre><pre><code>a\n b</code></pre>"
    expected = page.replace(TEXT[0], first).replace(TEXT[2], second)
    assert translator.translate([f"<i>{TEXT[0]}</i>\n", "\n"], split=True) == [f"<i>{first}</i>\n", "\n"]
    assert translator.translate([page], split=True)[0].replace("> <", "><") == expected


def test_the_tag_of_a_direction_is_in_no_pair(translator: MarkupTranslator) -> None:
    translator.tags = Tags([Direction("en", "de", ">>deu<<"), Direction("en", "fr", ">>fra<<")], "fr")
    whole, inner = translator.translate([f"<b>{TEXT[0]}</b>", f">>deu<< <b>{TEXT[0]}</b>"])
    assert (whole[:3], whole[-4:]) == ("<b>", "</b>")
    assert inner.count("<b>") == inner.count("</b>") == 1


def test_an_open_tag_is_refused_with_the_number_of_its_sentence(translator: MarkupTranslator) -> None:
    with pytest.raises(DataError, match="sentence 8, column 5: '<b>'"):
        translator.search(["dog", "The <b>dog"], first=7)
