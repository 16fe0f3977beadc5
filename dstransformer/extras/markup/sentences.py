"""Texts of several sentences with tags: where they divide, and their translations with the tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dstransformer.data.alignment import Link, words_before
from dstransformer.data.sentences import with_spaces
from dstransformer.extras.markup.markup import MarkedText
from dstransformer.extras.markup.tag_placement import Sentence, Span, place_tags


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
