"""Translation memories and the test sets of WMT in XML yield their pairs, or one error that names the line."""

from __future__ import annotations

import gzip
import lzma
import tracemalloc
from pathlib import Path

import pytest

from data_prep.sources.texts import local_text
from data_prep.sources.xml_pairs import is_in, iter_xml_pairs
from dstransformer.errors import DataError

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4"><header/><body>\n'
END = "</body></tmx>\n"


def unit(*texts: tuple[str, str]) -> str:
    sides = "".join(f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>' for language, text in texts)
    return f"<tu><note>not text</note>{sides}</tu>\n"


def memory(*units: str) -> str:
    return HEAD + "".join(units) + END


def pairs(path: Path, content: str | bytes, src: str = "en", tgt: str = "de") -> list[tuple[str, str]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(iter_xml_pairs(local_text(path), src, tgt))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.tmx"


def test_a_translation_memory(path: Path) -> None:
    content = memory(
        unit(("en", "A &amp; <![CDATA[<b>]]>."), ("de", " Zwei\n  Zeilen 🦊 ")),
        unit(("en", "Without German."), ("fr", "Sans allemand.")),
        unit(("de", ""), ("en", "Swapped.")),
    )
    assert pairs(path, content) == [("A & <b>.", "Zwei Zeilen 🦊"), ("Swapped.", "")]
    assert pairs(path, gzip.compress(content.encode())) == pairs(path, lzma.compress(content.encode()))
    assert pairs(path, content, "fr", "en") == [("Sans allemand.", "Without German.")]
    wide = content.replace('"UTF-8"', '"UTF-16"').encode("utf-16")
    assert pairs(path, wide) == [("A & <b>.", "Zwei Zeilen 🦊"), ("Swapped.", "")]


def test_inline_codes_are_no_text(path: Path) -> None:
    src = '<bpt i="1">&lt;b&gt;</bpt>bold<ept i="1">&lt;/b&gt;</ept> <hi>and</hi> <ph><sub>x <hi>y</hi></sub></ph>plain'
    assert pairs(path, memory(unit(("en", src), ("de", "<it>&lt;i&gt;</it>fett")))) == [("bold and plain", "fett")]


@pytest.mark.parametrize(("tag", "wanted", "fits"), [
    ("en", "en", True), ("EN-us", "en", True), ("en_GB", "en-gb", True), ("zh-Hans-CN", "zh_Hans", True),
    ("eng", "en", False), ("pt", "pt-BR", False), ("pt-PT", "pt-BR", False), ("", "en", False),
])  # fmt: skip
def test_a_language_is_a_range(tag: str, wanted: str, fits: bool) -> None:
    assert is_in(tag, wanted) is fits


def test_of_several_texts_in_a_language_the_closest_is_taken(path: Path) -> None:
    units = unit(("en-GB", "colour"), ("en", "shade"), ("en-US", "color"), ("de-AT", "Farbe"), ("de-DE", "Ton"))
    assert pairs(path, memory(units)) == [("shade", "Farbe")]
    assert pairs(path, memory(units), "en-US", "de-DE") == [("color", "Ton")]
    assert pairs(path, memory(units), "en", "en-GB") == [("shade", "colour")]
    old = memory(units).replace("xml:lang", "lang").replace("<tmx ", '<tmx xmlns="http://www.lisa.org/tmx14" ')
    assert pairs(path, old) == [("shade", "Farbe")], "TMX 1.1, and a namespace"


WMT = """<?xml version='1.0' encoding='utf-8'?>
<dataset id="wmt"><collection id="c">
<doc id="a" origlang="en">
<src lang="en"><p><seg id="1">One.</seg><seg id="2">Two.</seg></p><p><seg id="3">Three.</seg></p></src>
<ref lang="de" translator="A"><p><seg id="1">Eins.</seg><seg id="2"></seg></p><p><seg id="3">Drei.</seg></p></ref>
<ref lang="de" translator="B"><p><seg id="1">Ein.</seg></p></ref>
<hyp system="s" lang="de"><p><seg id="1">Falsch.</seg><seg id="2">F.</seg><seg id="3">F.</seg></p></hyp>
</doc>
<doc id="t" origlang="en" testsuite="x"><src lang="en"><seg id="1">X</seg></src><ref lang="de"><seg id="1">Y</seg></ref>
</doc></collection></dataset>
"""


def test_a_test_set_of_wmt_is_read_as_sacrebleu_reads_it(tmp_path: Path) -> None:
    assert pairs(tmp_path / "x.xml", WMT) == [("One.", "Eins."), ("Three.", "Drei.")]
    from sacrebleu.dataset.wmt_xml import WMTXMLDataset

    theirs = WMTXMLDataset._unwrap_wmt21_or_later(str(tmp_path / "x.xml"))
    assert theirs["src"] == ["One.", "Three."]
    assert theirs["ref:A"] == ["Eins.", "Drei."]


@pytest.mark.parametrize(("content", "message"), [
    (memory(unit(("en", "A"), ("fr", "B"))), r"x\.tmx has no unit with en and de; its languages are en, fr: correct"),
    (memory(), "its languages are none"),
    (memory(unit(("en", "A")))[:-20], r"x\.tmx, line 4: truncated or not well-formed XML \(no element found\)"),
    (memory("<tu>\n<tuv></tu>"), r"x\.tmx, line 5: .*mismatched tag"),
    (memory(unit(("en", "&nbsp;"), ("de", "B"))), r"line 4: .*undefined entity &nbsp;"),
    ("<html></html>", r"x\.tmx, line 1: <html> is neither <tmx> nor the <dataset>"),
    ("plain text\n", r"x\.tmx, line 1: .*syntax error"),
    ("", r"line 1: .*no element found"),
    (b"\xff<tmx>", "line 1: "),
    (HEAD.replace('"tmx14.dtd"', '"x" [<!ENTITY a "b">]'), r"line 2: it has XML entities or an internal DTD"),
    (HEAD.replace('"tmx14.dtd"', '"x" [<!ELEMENT a ANY>]'), r"line 2: it has XML entities or an internal DTD"),
    ("<tmx>" + "<a>" * 200, "elements nested more than 100 deep"),
    ("<tmx>" + "".join(f"<a{n}/>" for n in range(2000)), "more than 1000 different names"),
    ("<tmx " + 'a="' + "x" * 1_200_000, "a tag or a comment of more than 1,048,576 bytes"),
    (memory(unit(("en", "x " * 8_500_000))), "line 4: a unit of more than 16,777,216 bytes"),
    (gzip.compress(memory(unit(("en", "A"), ("de", "B"))).encode())[:-9], "data are truncated or damaged after line"),
], ids=range(16))  # fmt: skip
def test_what_cannot_be_read_is_refused_by_line(path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        pairs(path, content)
    assert "\n" not in str(caught.value)


def test_memory_does_not_grow_with_the_file(path: Path) -> None:
    path.write_text(memory(*(unit(("en", f"A dog {n}. " * 20), ("de", f"Ein Hund {n}. " * 20)) for n in range(1_000))))
    assert path.stat().st_size > 500_000
    tracemalloc.start()
    assert sum(1 for _ in iter_xml_pairs(local_text(path), "en", "de")) == 1_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400_000, peak
