from __future__ import annotations

import html
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstransformer.data.alignment import Link, read_links
from dstransformer.extras.markup.markup import MarkedText, parse_markup
from dstransformer.extras.markup.tag_placement import Translated, place_in_sentences, place_tags, with_breaks

_TAG = re.compile(r"<[^<>]*>")

EXAMPLES = [
    # pairs follow their words
    ("The <b>dog</b> sees.", "Der Hund sieht.", "0-0 1-1 2-2", "Der <b>Hund</b> sieht."),
    ("The <b>dog</b> sees the <i>cat</i>.", "Die Katze sieht der Hund.", "0-3 1-4 2-2 3-0 4-1",
     "Die <i>Katze</i> sieht der <b>Hund</b>."),
    ("<b>looks</b> at <i>it</i>", "sieht es an", "0-0 0-2 1-2 2-1", "<b>sieht <i>es</i> an</b>"),
    ("a <b>living</b> <i>room</i>", "ein Wohnzimmer", "0-0 1-1 2-1", "ein <b><i>Wohnzimmer</i></b>"),
    ("<b>a b</b> <i>c d</i>", "x yyyy z www", "0-0 1-2 2-1 3-3", "<i><b>x yyyy z</b> www</i>"),
    ("<b>a <i>b</i></b> c", "z y x", "0-0 1-2 2-1", "<b>z y <i>x</i></b>"),
    # whole sentences, and words without links
    ("<p>The dog sees.</p>", "Der Hund da sieht.", "", "<p>Der Hund da sieht.</p>"),
    ("The <b>very</b> dog", "Der Hund", "0-0 2-1", "Der <b></b>Hund"),
    ("<i>The <b>very</b></i> dog", "Der Hund", "0-0 2-1", "<i>Der<b></b></i> Hund"),
    ("a <b><u>very</u><x/></b> dog", "ein Hund", "0-0 2-1", "ein <b><u></u><x/></b>Hund"),
    # punctuation
    ("He sees <b>the dog</b>.", "Er sieht den Hund.", "0-0 1-1 2-2 3-3", "Er sieht <b>den Hund</b>."),
    ("He sees <b>the dog.</b>", "Er sieht den Hund.", "0-0 1-1 2-2 3-3", "Er sieht <b>den Hund.</b>"),
    ("He has <b>the dog.</b>", "Den Hund hat er.", "0-3 1-2 2-0 3-1", "<b>Den Hund</b> hat er."),
    ('a "<b>dog</b>", so', "ein „Hund“, so", "0-0 1-1 2-2", "ein „<b>Hund</b>“, so"),
    ('a <b>"dog"</b>, so', "ein „Hund“, so", "0-0 1-1 2-2", "ein <b>„Hund“</b>, so"),
    ("a (<b>big</b>) dog", "ein (großer) Hund", "0-0 1-1 2-2", "ein (<b>großer</b>) Hund"),
    ("I see dogs<b>!</b>", "Ich sehe Hunde!", "0-0 1-1 2-2", "Ich sehe Hunde<b>!</b>"),
    ("dogs<b>,</b> cats", "Katzen, Hunde", "0-1 1-0", "Katzen, Hunde<b></b>"),
    # tags without content
    ("The <img/>dog sees", "Den Hund sieht", "0-0 1-1 2-2", "Den <img/>Hund sieht"),
    ("one<br/>two", "zwei eins", "0-1 1-0", "<br/>zwei eins"),
    ("The dog.<br/>", "Hund der.", "0-1 1-0", "Hund der.<br/>"),
    ("a dog<fn/> sees", "sieht ein Hund", "0-1 1-2 2-0", "sieht ein Hund<fn/>"),
    ("a dog<fn/>, so", "ein Hund, so", "0-0 1-1 2-2", "ein Hund<fn/>, so"),
    ("<a><img/> the dog</a> sees", "Es sieht der Hund", "0-2 1-3 2-1", "Es sieht <a><img/>der Hund</a>"),
    ("<a><img/></a><b></b> dog", "Hund", "0-0", "<a><img/></a><b></b>Hund"),
    # inside of words
    ("un<b>believ</b>able!", "unglaublich!", "0-0", "<b>unglaublich</b>!"),
    ("a do<x/>g", "ein Hund", "0-0 1-1", "ein <x/>Hund"),
    # placeholders and entities stay whole
    ("'%s' <b>for X</b> is", "'%s' X", "0-0 1-0 2-1", "'<b>%s' X</b>"),
    ("a <b>%(x)s</b>, <x/>{0}!", "%(x)s, ({0})", "1-0 2-1", "<b>%(x)s</b>, <x/>({0})"),
    ("<i>a</i> <b>c</b> b", "b ${ x } %1$-5.2f", "0-2 1-2 2-0", "b <i><b>${ x }</b></i> %1$-5.2f"),
    ("<i>a</i> b", "x &copy; b", "0-1", "x <i>&amp;copy;</i> b"),
    # opaque elements: at the place of a word, or between the sentences
    ("Use <code>f</code> to read.", "Zum Lesen f.", "0-1 1-0", "<code>f</code> Zum Lesen f."),
    ("Run <a><code>f</code></a>!", "Lauf!", "0-0", "Lauf <a><code>f</code></a>!"),
    ("<code>f</code> is (<code>g</code> or) so", "Es (oder so) ist", "0-2 1-1 2-1",
     "<code>f</code> Es (<code>g</code> oder so) ist"),
    ('as "<code>f</code>" is', 'ist "" so', "0-2 1-1 2-0", 'ist "<code>f</code>" so'),
    ("H<sub translate='no'>2</sub>O is", "ist HO", "0-1 1-0", "ist H<sub translate='no'>2</sub>O"),
    ("<style>a<b</style><p>a b</p>", "b a", "0-1 1-0", "<style>a<b</style> <p>b a</p>"),
    ("<pre>a <!-- c -->\n\n<!-- d -->\n b</pre>", "A B", "0-0 1-1", "<pre>A <!-- c -->\n\n<!-- d -->\n B</pre>"),
    ("说<code>x</code>话", "Say it", "0-0", "<code>x</code> Say it"),
    # entities, and nothing
    ("R&amp;D &lt; <b>x</b>", "R&D < x>", "0-0 1-1 2-2", "R&amp;D &lt; <b>x&gt;</b>"),
    ("AT&T", "AT&T", "0-0", "AT&amp;T"),
    ("<b>x</b><br/>", "", "", "<b></b><br/>"),
    ("", "", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "links", "expected"), EXAMPLES)
def test_examples(source: str, target: str, links: str, expected: str) -> None:
    assert place_tags(parse_markup(source, ""), target, read_links(links)) == expected


words = st.text(alphabet='ab.,"(é&<', min_size=1, max_size=4)
texts = st.lists(words, max_size=7).map(" ".join)


@st.composite
def marked_lines(draw: st.DrawFn) -> str:
    """A well-formed line: its characters, with tags of all kinds between any of them."""
    pieces: list[str] = []
    unclosed: list[str] = []
    for number, character in enumerate(draw(texts)):
        for _ in range(draw(st.integers(0, 2)) if draw(st.booleans()) else 0):
            kind = draw(st.sampled_from(["open", "close", "void", "comment"]))
            if kind == "open":
                unclosed.append(f"n{len(pieces)}")
                pieces.append(f'<{unclosed[-1]} id="{number}">')
            elif kind == "close" and unclosed:
                pieces.append(f"</{unclosed.pop()}>")
            elif kind != "close":
                pieces.append(f"<v{number}/>" if kind == "void" else "<!-- c -->")
        pieces.append(html.escape(character))
    return "".join([*pieces, *(f"</{name}>" for name in reversed(unclosed))])


alignments = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


def ancestors(line: str) -> dict[str, set[str]]:
    """The pairs around each tag that has a name of its own."""
    tags = parse_markup(line, "").tags
    found: dict[str, set[str]] = {}
    for tag in tags:
        around = tags[tag.parent].opening if tag.parent >= 0 else None
        found[tag.opening] = set() if around is None else {around, *found[around]}
    return {tag: outer for tag, outer in found.items() if tag != "<!-- c -->"}


@given(marked_lines(), texts, alignments)
@settings(max_examples=300, deadline=None)
def test_whatever_the_alignment_nothing_is_lost_and_all_is_well_formed(
    line: str, target: str, links: list[Link]
) -> None:
    placed = place_tags(parse_markup(line, ""), target, links)
    assert html.unescape(_TAG.sub("", placed)) == target
    assert sorted(_TAG.findall(placed)) == sorted(_TAG.findall(line))
    before, after = ancestors(line), ancestors(placed)
    assert all(outer <= after[tag] for tag, outer in before.items())


@given(marked_lines())
@settings(max_examples=100, deadline=None)
def test_pairs_stay_around_their_words_if_nothing_moves(line: str) -> None:
    marked = parse_markup(line, "")
    count = len(marked.text.split())
    placed = parse_markup(place_tags(marked, marked.text, [(n, n) for n in range(count)]), "")
    there = {tag.opening: tag for tag in placed.tags}
    for tag in marked.tags:
        held = re.sub(r"\W", "", marked.text[tag.begin : tag.end])
        other = there[tag.opening]
        if tag.closing and held:
            assert held in re.sub(r"\W", "", placed.text[other.begin : other.end])


def opaque_elements() -> st.SearchStrategy[str]:
    """Elements that are not text, with what would be tags, entities and line ends in text."""
    inside = st.text(alphabet="ab <&>\n\t\u00ad'\"=;", max_size=8).map(lambda text: text.replace("<", "< "))
    raw = st.tuples(st.sampled_from(["script", "STYLE", "textarea"]), st.text(alphabet="ab<>&/\n'\" ", max_size=8))
    named = st.tuples(st.sampled_from(["code", "Kbd", "samp", "var", "svg", "math"]), inside)
    said = st.tuples(st.sampled_from(["div translate='no'", "span class='>notranslate'", "pre TRANSLATE=NO"]), inside)
    said = said.map(lambda pair: (pair[0].replace("'>", "'a> "), pair[1]))
    whole = st.one_of(raw, named, said).map(lambda pair: f"<{pair[0]}>{pair[1]}</{pair[0].split()[0].swapcase()}>")
    return st.one_of(whole, whole.map(lambda one: f"<kbd>{one}<kbd>a</b></kbd><i></kbd>"), st.just("<!-- a <b> -->"))


@st.composite
def documents(draw: st.DrawFn, depth: int = 3) -> str:
    """Blocks, words with tags, and opaque elements, in any order."""
    pieces = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.integers(0, 5 if depth else 1))
        if kind < 3:
            text = st.text(alphabet='ab.,("é %s', max_size=6)
            pieces.append(draw(text if kind else opaque_elements()))
        else:
            name = draw(st.sampled_from(["p", "b", "div", "pre", "i class='x'", "li"]))
            pieces.append(f"<{name}>{draw(documents(depth=depth - 1))}</{name.split()[0]}>")
        pieces.append(draw(st.sampled_from(["", " ", "\n", "<br>"])))
    return "".join(pieces)


def translated(document: str, seed: int, *, moves: bool) -> str:
    """The document with every line translated to its words in another order, or the same."""
    marked = parse_markup(document, "")
    text = with_breaks(marked)
    parts = []
    for line in filter(None, map(str.strip, text.splitlines())):
        words = line.split()
        order = random.Random(seed).sample(range(len(words)), len(words)) if moves else [*range(len(words))]
        links = [(number, place) for place, number in enumerate(order)]
        parts.append(Translated(line, " ".join(words[number] for number in order), links))
    return place_in_sentences(marked, text, parts or [Translated("", "", [])])


def marks(marked: MarkedText) -> list[str]:
    """The tags and opaque elements, and the line ends of ``<pre>`` without the spaces beside them."""
    found = [mark.strip(" ") for tag in marked.tags for mark in (tag.opening, tag.closing)]
    return sorted(filter(None, found))


@given(documents(), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_what_is_not_text_comes_back_byte_for_byte(document: str, seed: int) -> None:
    marked, result = parse_markup(document, ""), translated(document, seed, moves=True)
    other = parse_markup(result, "")
    assert marks(other) == marks(marked)
    assert sorted("".join(other.text.split())) == sorted("".join(marked.text.split()))
    same = parse_markup(translated(document, 0, moves=False), "")
    assert "".join(same.text.split()) == "".join(marked.text.split())
    assert [tag.opening for tag in same.tags if tag.is_opaque] == [tag.opening for tag in marked.tags if tag.is_opaque]
