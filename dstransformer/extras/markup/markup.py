"""Sentences with inline tags, ``a <b>bold</b> word<br/>``: their text, and the tags with their places in it.

HTML and XML both work: names match in any case, HTML's void elements (``<br>``) need no end, and a ``<`` or ``&`` that
begins neither tag nor entity is text. Elements that are not text, such as ``<script>``, ``<code>`` and those with
``translate="no"``, are *opaque*: each is one tag, whatever is in it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from contextlib import suppress
from html.parser import HTMLParser
from itertools import takewhile
from typing import Any, NamedTuple, NoReturn

from dstransformer.data.sentences import NO_SPACE_FOLLOWS
from dstransformer.data.tokenizer import plain_spaces
from dstransformer.errors import DataError, shown

#: Maximum tags of a sentence, so that no sentence takes long; those in opaque elements do not count.
MAX_TAGS = 1000

#: Maximum tags in an opaque element that an end tag closes with its own; more would cost time in vain.
_MAX_UNCLOSED = 100

#: Elements of HTML that have no end tag.
_VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)

#: Elements of HTML that separate words.
_BREAKS = frozenset(
    ("address", "article", "aside", "blockquote", "body", "br", "caption", "dd", "details", "dialog", "div", "dl", "dt",
     "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hr",
     "html", "legend", "li", "main", "nav", "ol", "optgroup", "option", "p", "pre", "section", "summary", "table",
     "tbody", "td", "tfoot", "th", "thead", "title", "tr", "ul")
)  # fmt: skip

#: Elements of HTML in which ``<`` begins no tag, and others that no translator should touch.
_RAW = frozenset(("script", "style", "textarea"))
_OPAQUE = frozenset(("code", "kbd", "samp", "var", "svg", "math"))

#: Punctuation that no space follows, and what has a space too many where something opaque was taken out.
_OPENING, _GAPS = "([{„“«", frozenset(f" {mark}" for mark in ")]}.,;:!?…”»%")

#: What would begin a tag, a comment or a declaration.
_BEGINS_TAG = re.compile(r"<[A-Za-z/!?]")

#: Line ends in ``<pre>`` with the spaces around them; after a tag that begins a line also spaces alone.
_LINE_ENDS = re.compile(r"(\s*[\r\n]\s*)"), re.compile(r"(\A\s+|\s*[\r\n]\s*)")


class Tag(NamedTuple):
    """A tag without content, or a pair of tags.

    Attributes:
        opening: The tag, or the first of the pair, as it was written. Comments, declarations, opaque elements and line
            ends in ``<pre>`` count as tags.
        closing: The second of the pair; empty if there is one tag.
        begin: Where it begins, a character of the text.
        end: Where it ends; ``begin`` if there is nothing in it.
        parent: The index of the pair around it; -1: none.
        is_break: Whether it separates words, as ``<br>`` does.
        is_opaque: Whether it is an opaque element, or several with nothing but spaces between them.
        is_word: Whether it is one that spaces keep from the words beside it.
    """

    opening: str
    closing: str
    begin: int
    end: int
    parent: int
    is_break: bool
    is_opaque: bool = False
    is_word: bool = False


class MarkedText(NamedTuple):
    """A sentence without its tags.

    Attributes:
        text: The text, with the characters that entities stand for.
        tags: The tags, in the order in which they begin.
    """

    text: str
    tags: tuple[Tag, ...]


def parse_markup(line: str, where: str) -> MarkedText:
    """Separate a sentence from its tags.

    Args:
        line: The sentence. Control characters of its text count as spaces, as everywhere.
        where: The file and the line, for errors.

    Raises:
        DataError: A tag is not complete, is not closed or closes nothing, or two pairs cross; the message says in which
            column, from 1. Or there are more tags than :data:`MAX_TAGS`.
    """
    return _Tree(line, where).read()


def is_letter(character: str) -> bool:
    """Whether a space keeps the character from words beside it; there may be none."""
    return character.isalnum() and not NO_SPACE_FOLLOWS.search(character)


class _Tree(HTMLParser):
    """Pairs the tags of a line.

    Args:
        line: The line.
        where: The file and the line, for errors.
    """

    def __init__(self, line: str, where: str) -> None:
        super().__init__()
        self._line = line
        self._where = where
        self._line_begins = [0, *(end.end() for end in re.finditer("\n", line))]
        self._last: tuple[str, int, str, bool | None] = ("text", 0, "", None)
        self._text = ""
        self._words_end = 0
        self._tags: list[Tag] = []
        self._names: list[str] = []
        self._sources: list[tuple[int, int]] = []
        self._open: list[int] = []
        self._breaks = False

    def read(self) -> MarkedText:
        """The text and its tags; for errors see :func:`parse_markup`."""
        with suppress(AssertionError):  # at "<![x", before Python 3.13.6
            self.feed(self._line)
        self._take("text")
        self._add(*self._last, len(self._line))
        if (index := self._innermost("")) is not None:
            self._refuse(*self._sources[index], "is not closed on its line")
        tags = []
        for tag, (begin, end) in zip(self._tags, self._sources, strict=True):
            touches = is_letter(self._line[begin - 1 : begin]) or is_letter(self._line[end : end + 1])
            is_word = tag.is_opaque and not tag.is_break and not touches
            tags.append(tag._replace(opening=self._line[begin:end], is_word=is_word))
        return MarkedText(self._text, tuple(tags))

    def _take(self, kind: str, name: str = "", attributes: Iterable[tuple[str, str | None]] = ()) -> None:
        """Take what begins here, ``text`` or a tag (``start``, ``end`` or ``empty``); what was before ends."""
        if kind == self._last[0] == "text":
            return
        number, column = self.getpos()
        begin = self._line_begins[number - 1] + column
        self._add(*self._last, begin)
        said = {key: (value or "yes").lower() for key, value in attributes}
        is_kept = "notranslate" in said.get("class", "").split()
        translate = False if is_kept else {"no": False, "yes": True}.get(said.get("translate", ""))
        self._last = kind, begin, name, translate

    def set_cdata_mode(self, elem: str, **options: Any) -> None:
        """In these elements alone: which others are raw text differs between the releases of Python."""
        if elem in _RAW:
            super().set_cdata_mode(elem, **options)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._take("start", tag, attrs)
        self.set_cdata_mode(tag)

    def handle_startendtag(self, tag: str, _: list[tuple[str, str | None]]) -> None:
        self._take("empty", tag)

    def handle_endtag(self, tag: str) -> None:
        self._take("end", tag)

    def handle_data(self, _: str) -> None:
        self._take("text")

    def _take_other(self, *_: Any, **__: Any) -> None:
        self._take("empty")

    handle_comment = handle_decl = handle_pi = unknown_decl = _take_other

    def _add(self, kind: str, begin: int, name: str, translate: bool | None, end: int) -> None:
        is_opaque = bool(self._open) and self._tags[self._open[-1]].is_opaque
        if len(self._tags) > MAX_TAGS and not is_opaque:
            raise DataError(f"{self._where} has more than {MAX_TAGS:,} tags: divide it")
        if kind == "text":
            (self._add_opaque if is_opaque else self._add_text)(begin, end)
        elif kind == "end":
            self._close(name, begin, end)
        elif kind == "empty":
            self._add_tag(begin, end, name, is_opaque)
        else:
            if name not in _VOID and (translate is not None or name in _RAW | _OPAQUE):
                is_opaque = name in _RAW or not translate
            self._add_tag(begin, end, name, is_opaque)
            self._open.append(len(self._tags) - 1)
        self._breaks |= name in _BREAKS

    def _add_tag(self, begin: int, end: int, name: str, is_opaque: bool = False) -> None:
        parent, at = self._open[-1] if self._open else -1, len(self._text)
        self._tags.append(Tag("", "", at, at, parent, name in _BREAKS, is_opaque))
        self._names.append(name)
        self._sources.append((begin, end))

    def _add_text(self, begin: int, end: int) -> None:
        if begun := _BEGINS_TAG.search(self._line, begin, end):
            self._refuse(begun.start(), begun.start() + 20, "begins no complete tag: complete it, or write &lt; for <")
        pieces = [self._line[begin:end]]
        if any(self._names[index] == "pre" for index in self._open):
            pieces = _LINE_ENDS[self._breaks and not self._tags[-1].is_opaque].split(pieces[0], MAX_TAGS + 1)
        for number, piece in enumerate(pieces):
            if number % 2:
                self._add_tag(begin, begin + len(piece), "br")
                self._breaks = True
            elif text := html.unescape(plain_spaces(piece)):
                self._add_words(text)
            begin += len(piece)

    def _add_words(self, text: str) -> None:
        if self._tags and self._tags[-1].is_opaque and self._text[-1:] in _OPENING:
            text = text.lstrip()
        elif self._tags and self._tags[-1].is_opaque and self._text[-1] + text[0] in _GAPS and not self._breaks:
            self._text, last = self._text[:-1], len(self._text) - 1
            self._tags = [tag._replace(begin=min(tag.begin, last), end=min(tag.end, last)) for tag in self._tags]
        joined = not self._breaks or not self._text or self._text[-1].isspace() or text[:1].isspace()
        self._text += text if joined else f" {text}"
        self._breaks &= not text
        if text.strip():
            self._words_end = len(self._text)

    def _add_opaque(self, begin: int, end: int, name: str = "") -> None:
        """Take what is opaque; it goes on with what is before, if that is opaque too, but for spaces between them."""
        before = self._tags[-1] if self._tags else None
        parent, is_break = self._open[-1] if self._open else -1, name in _BREAKS
        if before and before[4:7] == (parent, is_break, True) and self._words_end <= before.begin:
            self._text = self._text[: before.begin]
            self._sources[-1] = self._sources[-1][0], end
            return
        if self._breaks and not is_break and self._text[-1:].strip():
            self._text += " "
        self._add_tag(begin, end, name, is_opaque=True)

    def _close(self, name: str, begin: int, end: int) -> None:
        index = self._innermost(name)
        if index is None:
            self._refuse(begin, end, "closes no tag of its line")
        elif self._names[index] != name and self._tags[index].is_opaque:
            self._add_opaque(begin, end)
        elif self._names[index] != name:
            opening = self._line[slice(*self._sources[index])]
            self._refuse(begin, end, f"comes before the end of {shown(opening)}: close that first")
        elif self._words_end > self._tags[index].begin or not any(tag.is_opaque for tag in self._tags[index:]):
            self._open.pop()
            self._tags[index] = self._tags[index]._replace(
                closing=self._line[begin:end], end=len(self._text), is_opaque=False
            )
        else:  # an element without words that holds an opaque one is opaque
            self._open.pop()
            self._text, begin = self._text[: self._tags[index].begin], self._sources[index][0]
            del self._tags[index:], self._names[index:], self._sources[index:]
            self._add_opaque(begin, end, name)

    def _innermost(self, name: str) -> int | None:
        """The pair that is open, the last of them; but those before it that need no end, if they have another name.

        These, void elements and all in an opaque one, have no content: it is in the pair around them.
        """
        ended = set()
        while self._open and self._names[self._open[-1]] in _VOID - {name}:
            ended.add(self._open.pop())
        around = takewhile(lambda index: self._tags[index].is_opaque, reversed(self._open[-_MAX_UNCLOSED:]))
        if any(self._names[index] == name for index in around):
            while self._names[self._open[-1]] != name:
                ended.add(self._open.pop())
        for inner in range(min(ended, default=len(self._tags)), len(self._tags)):
            if (parent := self._tags[inner].parent) in ended:
                self._tags[inner] = self._tags[inner]._replace(parent=self._tags[parent].parent)
        return self._open[-1] if self._open else None

    def _refuse(self, begin: int, end: int, reason: str) -> NoReturn:
        raise DataError(f"{self._where}, column {begin + 1}: {shown(self._line[begin:end])} {reason}")
