"""Puts the tags of a sentence into its translation, by the alignment of their words.

1. A pair of tags goes around the target words that the words inside it are linked to, from the first to the last. A
   pair around a whole sentence goes around its whole translation. Tags inside a word count as around it.
2. Punctuation at the edges of a pair is inside in the target if it was inside in the source.
3. What was nested stays nested. Where word order makes two pairs cross, one is widened to hold the other: the one that
   grows less.
4. A tag without content goes before the first target word that the word after it is linked to; if that word is not
   linked, the next linked one; without any, to the end. If it touches only the word before it, as a footnote does, it
   stays after that. So does a pair without linked words. All stay in the pair that they were in. What separates words,
   and what is not text, stays between the sentences that it was between.
5. No tag goes into a placeholder or an entity. Spaces keep an opaque element from words, and line ends of ``<pre>``
   stand for spaces.

Every tag of the input is in the output exactly once, and the translation without them is otherwise unchanged.
"""

from __future__ import annotations

import html
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dstransformer.data.alignment import WORD, Link, words_before
from dstransformer.data.sentences import with_spaces
from dstransformer.extras.markup.markup import MarkedText, Tag, is_letter

#: Marks that stand for each other in different languages: quotation marks, and full-width punctuation.
_ALIKE = str.maketrans(
    {**dict.fromkeys("'„“”‚‘’«»‹›「」『』", '"'), **dict(zip("。、！？，．；：（）", ".,!?,.;:()", strict=True))}
)

#: Punctuation that a space follows.
_CLOSING = frozenset(".,;:!?)]%")

#: What a program replaces: ``%s``, ``%(name)s``, ``%1$-5.2f``, ``{0}``, ``{{name}}``, ``$HOME``; and entities.
_KEPT = re.compile(
    r"%(?:\(\w+\)|\{\w+\}|<\w+>)?(?:[-+#'*.\w$]*\w|%)?|[$#]?\{+[^{}]*\}+|\$\(?\w+\)?|&#?\w+;|__\w+", re.ASCII
)


class _Word(NamedTuple):
    """A word, by characters of its text: its begin and end, and those of what is not punctuation at its edges."""

    begin: int
    core_begin: int
    core_end: int
    end: int


class Span(NamedTuple):
    """Characters of the target, at least one, except for a single place."""

    begin: int
    end: int


class Sentence(NamedTuple):
    """Where a sentence of the source stands, and where its translation does."""

    src: Span
    tgt: Span


#: What pairs go around, by their indices among the tags.
Spans = dict[int, Span]


class _Text:
    """A text, its words, where each begins and ends, and the span from the first to the last."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words: list[_Word] = []
        for match in WORD.finditer(text):
            core = [at for at in range(*match.span()) if not unicodedata.category(text[at]).startswith("P")]
            begin, end = (core[0], core[-1] + 1) if core else match.span()
            self.words.append(_Word(match.start(), begin, end, match.end()))
        self.begins = [word.begin for word in self.words]
        self.ends = [word.end for word in self.words]
        self.span = Span(self.begins[0], self.ends[-1]) if self.words else Span(0, 0)


def place_tags(
    marked: MarkedText, target: str, links: Iterable[Link], sentences: Sequence[Sentence] | None = None
) -> str:
    """The translation with the tags of its source.

    Args:
        marked: The source.
        target: The translation of its text.
        links: The alignment of their words, which whitespace separates. Links of words that do not exist are ignored.
        sentences: The sentences of the source; None: it is one.

    Returns:
        The translation with the tags; its own ``&``, ``<`` and ``>`` are entities.
    """
    if not marked.tags:
        return html.escape(target, quote=False)
    placement = _Placement(marked, target, links, sentences)
    spans = placement.spans()
    return _render(marked.tags, spans, placement.points(spans), target)


class _Placement:
    """Finds the places of tags in the target; for the arguments see :func:`place_tags`."""

    def __init__(
        self, marked: MarkedText, target: str, links: Iterable[Link], sentences: Sequence[Sentence] | None
    ) -> None:
        self._tags = marked.tags
        self._src, self._tgt = _Text(marked.text), _Text(target)
        self._kept = [Span(*found.span()) for found in _KEPT.finditer(target)]
        self._sentences = [Sentence(self._src.span, self._tgt.span)] if sentences is None else sentences
        self._linked: dict[int, list[int]] = {}
        for src, tgt in sorted(links):
            if 0 <= tgt < len(self._tgt.words):
                self._linked.setdefault(src, []).append(tgt)

    def spans(self) -> Spans:
        """What each pair goes around, if it goes around something."""
        spans = {
            index: self._around_kept(*span)
            for index, tag in enumerate(self._tags)
            if tag.closing and (span := self._span(tag))
        }
        for index in sorted(spans, reverse=True):
            self._grow(spans, self._tags[index].parent, spans[index])
        while self._widen_crossing(spans):
            pass
        return spans

    def points(self, spans: Spans) -> dict[int, int]:
        """The places of the tags that go around nothing; in the pair that they were in, if that goes around something.

        Those in a pair that itself goes around nothing have none of their own.
        """
        points: dict[int, int] = {}
        for index, tag in enumerate(self._tags):
            if index not in spans and (tag.parent < 0 or tag.parent in spans):
                outer = spans.get(tag.parent, Span(0, len(self._tgt.text)))
                between = self._between_sentences(tag)
                at = self._anchor(tag) if between is None else between
                if index - 1 in points and self._tags[index - 1][2:5] == tag[2:5]:
                    at = max(at, points[index - 1])
                points[index] = min(max(self._around_kept(at, at).begin, outer.begin), outer.end)
        return points

    def _around_kept(self, begin: int, end: int) -> Span:
        """A span that begins and ends in nothing that stays whole."""
        cut = [one for one in self._kept if any(one.begin < at < one.end for at in (begin, end))]
        return Span(min([begin, *(one.begin for one in cut)]), max([end, *(one.end for one in cut)]))

    def _span(self, tag: Tag) -> Span | None:
        """What a pair goes around, without regard to other pairs."""
        src, tgt = self._src.words, self._tgt.words
        inside = range(bisect_right(self._src.ends, tag.begin), bisect_left(self._src.begins, tag.end))
        if not inside or not tgt or tag.begin == tag.end:
            return None
        whole = [one for one in self._sentences if tag.begin <= one.src.begin and one.src.end <= tag.end]
        spans = [one.tgt for one in whole if one.tgt.begin < one.tgt.end]
        done = {n for one in whole for n in range(*(bisect_left(self._src.begins, at) for at in one.src))}
        cores = [n for n in inside if n not in done and src[n].core_begin < tag.end and src[n].core_end > tag.begin]
        if not cores and not whole:
            return self._around_punctuation(tag, inside[0])
        if found := [number for n in cores for number in self._linked.get(n, ())]:
            first, last = min(found), max(found)
            begin = tgt[first].core_begin - self._leading(tag, cores[0], first)
            spans.append(Span(begin, tgt[last].core_end + self._trailing(tag, cores[-1], last)))
        return Span(min(one.begin for one in spans), max(one.end for one in spans)) if spans else None

    def _leading(self, tag: Tag, src: int, tgt: int) -> int:
        """Characters of punctuation before a target word that belong inside a pair, ``src`` being its first word."""
        word, other = self._src.words[src], self._tgt.words[tgt]
        there = self._tgt.text[other.begin : other.core_begin]
        covered = self._src.text[max(tag.begin, word.begin) : word.core_begin]
        if covered and _alike(there).endswith(_alike(covered)):
            return len(covered)
        return len(there) if covered and tag.begin <= word.begin else 0

    def _trailing(self, tag: Tag, src: int, tgt: int) -> int:
        """Characters of punctuation after a target word that belong inside a pair, ``src`` being its last word."""
        word, other = self._src.words[src], self._tgt.words[tgt]
        there = self._tgt.text[other.core_end : other.end]
        covered = self._src.text[word.core_end : min(tag.end, word.end)]
        if covered and _alike(there).startswith(_alike(covered)):
            return len(covered)
        same_role = (src == len(self._src.words) - 1) == (tgt == len(self._tgt.words) - 1)
        return len(there) if covered and tag.end >= word.end and same_role else 0

    def _around_punctuation(self, tag: Tag, src: int) -> Span | None:
        """What a pair goes around that holds nothing but punctuation at the edge of a word."""
        word = self._src.words[src]
        covered = _alike(self._src.text[max(tag.begin, word.begin) : min(tag.end, word.end)])
        follows, count = tag.begin >= word.core_end, len(self._tgt.words)
        at_edge = src == (len(self._src.words) - 1 if follows else 0)
        for tgt in [*([count - 1 if follows else 0] if at_edge else []), *reversed(self._linked.get(src, []))]:
            other = self._tgt.words[tgt]
            begin, end = (other.core_end, other.end) if follows else (other.begin, other.core_begin)
            if (at := _alike(self._tgt.text[begin:end]).find(covered)) >= 0:
                return Span(begin + at, begin + at + len(covered))
        return None

    def _grow(self, spans: Spans, index: int, span: Span) -> None:
        """Make a pair, and those around it, hold a span."""
        grown = span
        while index >= 0:
            own = spans.get(index, grown)
            spans[index] = grown = Span(min(own.begin, grown.begin), max(own.end, grown.end))
            index = self._tags[index].parent

    def _widen_crossing(self, spans: Spans) -> bool:
        """Make one of two crossing pairs hold the other, wherever that is seen; returns whether any crossed.

        The one grows that grows less; of equals, that which begins first in the source.
        """
        found = False
        around: list[int] = []
        for index in _by_place(spans):
            while around and spans[around[-1]].end <= spans[index].begin:
                around.pop()
            if around and spans[around[-1]].begin < spans[index].begin and spans[around[-1]].end < spans[index].end:
                first, one, other = around[-1], spans[around[-1]], spans[index]
                more = (other.end - one.end) - (other.begin - one.begin)
                wider = first if more < 0 or (more == 0 and first < index) else index
                self._grow(spans, wider, Span(one.begin, other.end))
                found = True
            around.append(index)
        return found

    def _anchor(self, tag: Tag) -> int:
        src, tgt = self._src.words, self._tgt.words
        after = bisect_left(self._src.begins, tag.begin)
        if after:
            word, linked = src[after - 1], self._linked.get(after - 1)
            if linked and tag.begin < word.end:
                other = tgt[linked[-1 if tag.begin >= word.core_end else 0]]
                if self._src.text[word.begin : word.end] == self._tgt.text[other.begin : other.end]:
                    return other.begin + tag.begin - word.begin
                if tag.begin >= word.core_end:
                    return other.core_end
                return other.core_begin if tag.begin <= word.core_begin else other.begin
            touches = tag.begin == word.end and after < len(src) and src[after].begin > tag.begin
            if linked and touches and not tag.is_break:
                return tgt[linked[-1]].end
        following = (self._linked[number] for number in range(after, len(src)) if number in self._linked)
        first = next(following, None)
        return tgt[first[0]].begin if first else tgt[-1].end

    def _between_sentences(self, tag: Tag) -> int | None:
        """The place of what belongs to no sentence, if it is in none."""
        if not self._tgt.words:
            return 0
        if not (tag.is_opaque or tag.is_break or tag.opening.startswith(("<!", "<?"))):
            return None
        before = [one for one in self._sentences if one.src.begin < tag.begin]
        after = self._sentences[len(before) :]
        if before and tag.begin < before[-1].src.end:
            return None
        touches = before and after and tag.begin == before[-1].src.end < after[0].src.begin and not tag.is_break
        return before[-1].tgt.end if touches or not after else after[0].tgt.begin


def _alike(marks: str) -> str:
    return marks.translate(_ALIKE)


def _by_place(spans: Spans) -> list[int]:
    """The pairs by the begin of their spans, of equal begins the longest first."""
    return sorted(spans, key=lambda index: (spans[index].begin, -spans[index].end, index))


def _render(tags: Sequence[Tag], spans: Spans, points: Mapping[int, int], target: str) -> str:
    """The target with tags around the spans, of which none cross, and at the points."""
    inner = _inner(tags, spans, points)
    places = {**spans, **{index: Span(at, at) for index, at in points.items()}, -1: Span(0, len(target))}
    rendered = {index: _block(tags, index) for index in points}
    for index in [*reversed(_by_place(spans)), -1]:
        begin, end = places[index]
        pieces = []
        for child in sorted(inner[index], key=lambda one: (*places[one], one)):
            before, begin, block = target[begin : places[child].begin], max(begin, places[child].end), rendered[child]
            if tags[child].opening.isspace():
                before, begin = before.removesuffix(" "), begin + (target[begin : begin + 1] == " ")
            elif tags[child].is_word:
                left, right = target[begin - 1 : begin], target[begin : begin + 1]
                block = " " * (is_letter(left) or left in _CLOSING) + block + " " * is_letter(right)
            pieces += [html.escape(before, quote=False), block]
        pieces.append(html.escape(target[begin:end], quote=False))
        rendered[index] = "".join(pieces if index < 0 else [tags[index].opening, *pieces, tags[index].closing])
    return rendered[-1]


def _inner(tags: Sequence[Tag], spans: Spans, points: Mapping[int, int]) -> dict[int, list[int]]:
    """What is directly inside each pair that goes around something, and, as -1, inside none."""
    inner: dict[int, list[int]] = {-1: []}
    around: list[int] = []
    for index in _by_place(spans):
        while around and spans[around[-1]].end <= spans[index].begin:
            around.pop()
        inner[around[-1] if around else -1].append(index)
        inner[index] = []
        around.append(index)
    for index, at in points.items():
        outer = tags[index].parent
        while holding := [one for one in inner[outer] if one in spans and spans[one].begin < at < spans[one].end]:
            outer = holding[0]
        inner[outer].append(index)
    return inner


def _block(tags: Sequence[Tag], index: int) -> str:
    """A pair that goes around nothing, with the tags in it; or a single tag."""
    pieces: list[str] = []
    closings: list[tuple[int, str]] = []
    for number in range(index, len(tags)):
        while closings and closings[-1][0] != tags[number].parent:
            pieces.append(closings.pop()[1])
        if not closings and number > index:
            break
        pieces.append(tags[number].opening)
        closings.append((number, tags[number].closing))
    return "".join([*pieces, *(closing for _, closing in reversed(closings))])


# Texts of several sentences


def with_breaks(marked: MarkedText) -> str:
    """The text, in which a space at a tag that separates words, such as ``<p>``, is a line end: so a sentence ends."""
    text = list(marked.text)
    for tag in marked.tags:
        for at in {tag.begin - 1, tag.begin, tag.end - 1, tag.end} if tag.is_break else ():
            if 0 <= at < len(text) and text[at] == " ":
                text[at] = "\n"
    return "".join(text)


class Translated(NamedTuple):
    """A sentence of a text, its translation, and the alignment of their words."""

    sentence: str
    translation: str
    links: Sequence[Link]


def place_in_sentences(marked: MarkedText, text: str, sentences: Sequence[Translated]) -> str:
    """The translation of a text with its tags; a pair around a whole sentence goes around its translation.

    Args:
        marked: The text.
        text: As :func:`with_breaks` has it, but for the tag of its direction, if it begins with one.
        sentences: Those of ``text``.
    """
    chunks = with_spaces(text, [one.sentence for one in sentences], [one.translation for one in sentences])
    spans: list[Sentence] = []
    links: list[Link] = []
    end, target = len(marked.text) - len(text), ""
    for one, chunk in zip(sentences, chunks, strict=False):
        begin = marked.text.index(one.sentence, end)
        end = begin + len(one.sentence)
        first = words_before(marked.text[:begin], one.sentence), words_before(target, chunk)
        links += [(first[0] + src, first[1] + tgt) for src, tgt in one.links]
        target += chunk
        spans.append(Sentence(Span(begin, end), Span(len(target) - len(one.translation), len(target))))
    return place_tags(marked, "".join(chunks).replace("\n", " "), links, spans)
