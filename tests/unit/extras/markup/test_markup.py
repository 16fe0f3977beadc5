from __future__ import annotations

import pytest

from dstransformer.errors import DataError
from dstransformer.extras.markup.markup import MAX_TAGS, MarkedText, Tag, parse_markup


def parse(line: str) -> MarkedText:
    return parse_markup(line, "in.txt, line 3")


def spans(line: str) -> list[tuple[str, str]]:
    """The tags of a line, each with the text in it."""
    text, tags = parse(line)
    return [(f"{tag.opening}{tag.closing}", text[tag.begin : tag.end]) for tag in tags]


def test_tags_are_taken_out_and_entities_decoded() -> None:
    assert parse("a <b>bold &amp; <i>x</i></b>&nbsp;word") == MarkedText(
        "a bold & x\u00a0word", (Tag("<b>", "</b>", 2, 10, -1, False), Tag("<i>", "</i>", 9, 10, 0, False))
    )


@pytest.mark.parametrize(("line", "text"), [
    ("AT&T is 5 < 6 > 3 & <3", "AT&T is 5 < 6 > 3 & <3"),
    ("&lt;b&gt;", "<b>"),
    ("one<br/>two<BR>three<hr>", "one two three"),
    ("<p>One.</p><p>Two.</p>", "One. Two."),
    ("one <br/> two", "one  two"),
    ("un<b>believ</b>able<wbr>!", "unbelievable!"),
    ("a<!-- <b> -->b<?pi x?>c<!DOCTYPE html>", "abc"),
    ("<title>a <b>c</b></title><script>d</script>", "a c "),
    ("a\tb\u0000c\u00ad<b\n>d</b>", "a b cd"),
    (">>deu<< The dog", ">>deu<< The dog"),
    ("", ""),
])  # fmt: skip
def test_texts(line: str, text: str) -> None:
    assert parse(line).text == text


def test_what_has_no_end_tag_is_void_and_names_match_in_any_case() -> None:
    assert spans("<B>a<br>b</b><img src='x>y'><g id=1>c<x/></G>") == [
        ("<B></b>", "a b"), ("<br>", ""), ("<img src='x>y'>", ""), ("<g id=1></G>", "c"), ("<x/>", "")
    ]  # fmt: skip
    assert spans("<link>HTML or XML?</link><source>both") == [("<link></link>", "HTML or XML?"), ("<source>", "")]
    inner = parse("<b><img><i>x</i></b>").tags
    assert [tag.parent for tag in inner] == [-1, 0, 0]


@pytest.mark.parametrize(("line", "text", "opaque"), [
    ("Use <code>f(<b>x</b>)</code>.", "Use.", ["<code>f(<b>x</b>)</code>"]),
    ("a <KBD>&lt;\t\u00ad</Kbd> b", "a  b", ["<KBD>&lt;\t\u00ad</Kbd>"]),
    ("<p>a</p><style>p > b { }</style><p>b</p>", "a b", ["<style>p > b { }</style>"]),
    ("<script a='>'>if (a<b) '</p>'</script>c", "c", ["<script a='>'>if (a<b) '</p>'</script>"]),
    ("<textarea><b>&</i></textarea> c", "c", ["<textarea><b>&</i></textarea>"]),
    ("a<svg><path d='>'/><style>a<b</style></svg>b", "ab", ["<svg><path d='>'/><style>a<b</style></svg>"]),
    ("(<math><mi>x</math> is)", "(is)", ["<math><mi>x</math>"]),
    ("<var>a<var>b</var>c</var><samp>d</samp> e", "e", ["<var>a<var>b</var>c</var><samp>d</samp>"]),
    # one thing, with what is around it and no text
    ("a <a href='x'><code>b</code></a> <code>c</code><!-- d --> e", "a  e",
     ["<a href='x'><code>b</code></a> <code>c</code>"]),
    ("<div>\n<pre><code>a\n b</code>\n</pre></div>b", "b", ["<div>\n<pre><code>a\n b</code>\n</pre></div>"]),
    # what says that it is not translated, and what is translated in it
    ("<b translate=no>a</b> <b TRANSLATE='NO'>b</b> c", "c", ["<b translate=no>a</b> <b TRANSLATE='NO'>b</b>"]),
    ("<i class='x notranslate'>a<i>b</i></i> <i class='notranslated'>c</i>", "c",
     ["<i class='x notranslate'>a<i>b</i></i>"]),
    ("<p translate='no'>a &amp; <i translate='yes'>b</i> <u>c</u></p>", "b", ["a &amp; ", " <u>c</u>"]),
    ("<code translate='yes'>a</code><br translate='no'>b<script translate='yes'>c</script>", "a b",
     ["<script translate='yes'>c</script>"]),
])  # fmt: skip
def test_what_is_not_text_is_one_tag(line: str, text: str, opaque: list[str]) -> None:
    found = parse(line)
    assert found.text == text
    assert [tag.opening for tag in found.tags if tag.is_opaque] == opaque


def test_line_ends_of_pre_are_tags_that_separate_words() -> None:
    text, tags = parse("<p>a\nb</p><pre> c <b>d</b>\n\n e\r\n</pre>f")
    assert text == "a b c d e f"
    assert [(tag.opening, tag.begin) for tag in tags if tag.opening.isspace()] == [(" ", 3), ("\n\n ", 7), ("\r\n", 9)]


@pytest.mark.parametrize(("line", "column", "reason"), [
    ("a <b>c", 3, "'<b>' is not closed on its line"),
    ("a</b>c", 2, "'</b>' closes no tag of its line"),
    ("<b>a<i>c</b></i>", 9, "'</b>' comes before the end of '<i>': close that first"),
    ("a <b", 3, "'<b' begins no complete tag: complete it, or write &lt; for <"),
    ('a <a href="x', 3, "begins no complete tag"),
    ("a</>b", 2, "begins no complete tag"),
    ("</b>a</b>", 1, "'</b>' closes no tag of its line"),
    ("<p>a<code>b</p>", 5, "'<code>' is not closed on its line"),
    ("a <script>b<c</scrip>", 3, "'<script>' is not closed on its line"),
    ('\u200ba <b translate="no"><i>b</i>', 4, "is not closed on its line"),
    ("a <!-- b", 3, "begins no complete tag"),
    ("<![foo bar", 1, "begins no complete tag"),
    ("</>", 1, "begins no complete tag"),
])  # fmt: skip
def test_ill_formed_lines(line: str, column: int, reason: str) -> None:
    with pytest.raises(DataError) as error:
        parse(line)
    assert str(error.value).startswith(f"in.txt, line 3, column {column}: ")
    assert reason in str(error.value)


def test_too_many_tags() -> None:
    assert len(parse("<x/>" * MAX_TAGS).tags) == MAX_TAGS
    assert parse(f"a <svg>{'<x/>' * MAX_TAGS}</svg>").text == "a "
    with pytest.raises(DataError, match=r"in.txt, line 3 .*1,000 tags"):
        parse("<x/>" * (MAX_TAGS + 1))
