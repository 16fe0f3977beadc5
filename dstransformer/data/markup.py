"""Sentences with inline tags, ``a <b>bold</b> word<br/>``: their text, and the tags with their places in it.

The standard library's HTML parser finds the tags, so HTML and XML both work: names match in any case, HTML's void
elements (``<br>``) need no end, and a ``<`` or ``&`` that begins neither tag nor entity is text.
"""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any, NamedTuple

from dstransformer.data.tokenizer import plain_spaces
from dstransformer.errors import DataError, shown

#: Maximum ``<`` of a sentence, so that no sentence takes long.
MAX_TAGS = 1000

#: Elements of HTML that have no end tag.
_VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)

#: Elements of HTML that separate words.
_BREAKS = frozenset(
    ("blockquote", "br", "dd", "div", "dl", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre",
     "table", "td", "th", "tr", "ul")
)  # fmt: skip

#: What would begin a tag, a comment or a declaration.
_BEGINS_TAG = re.compile(r"<[A-Za-z/!?]")

_END_TAG = re.compile(r"</[A-Za-z][^<>]*>")


class Tag(NamedTuple):
    """A tag without content, or a pair of tags.

    Attributes:
        opening: The tag, or the first of the pair, as it was written. Comments and declarations count as tags.
        closing: The second of the pair; empty if there is one tag.
        begin: Where it begins, a character of the text.
        end: Where it ends; ``begin`` if there is nothing in it.
        parent: The index of the pair around it; -1: none.
        is_break: Whether it separates words, as ``<br>`` does.
    """

    opening: str
    closing: str
    begin: int
    end: int
    parent: int
    is_break: bool


class MarkedText(NamedTuple):
    """A sentence without its tags.

    Attributes:
        text: The text, with the characters that entities stand for.
        tags: The tags, in the order in which they begin.
    """

    text: str
    tags: tuple[Tag, ...]


class _Token(NamedTuple):
    """A piece of a line: ``text``, ``start``, ``end``, or ``single``, which stands alone."""

    kind: str
    value: str
    begin: int
    end: int


def parse_markup(line: str, where: str) -> MarkedText:
    """Separate a sentence from its tags.

    Args:
        line: The sentence. Control characters count as spaces, as everywhere.
        where: The file and the line, for errors.

    Raises:
        DataError: A tag is not complete, is not closed or closes nothing, or two pairs cross; the message says in which
            column, from 1. Or there are more tags than :data:`MAX_TAGS`.
    """
    line = plain_spaces(line)
    if "<" not in line:
        return MarkedText(html.unescape(line), ())
    if (count := line.count("<")) > MAX_TAGS:
        raise DataError(f"{where} has {count:,} tags: give at most {MAX_TAGS:,}")
    tree = _Tree(where)
    for token in _read_tokens(line, where):
        tree.add(token, line[token.begin : token.end])
    return tree.finish()


def _read_tokens(line: str, where: str) -> list[_Token]:
    reader = _Reader()
    try:
        reader.feed(line)
        reader.close()
    except AssertionError:  # the parser's word for a declaration that it does not know
        raise _incomplete(line, where, reader.getpos()[1]) from None
    tokens: list[_Token] = []
    begins = [begin for _, _, begin, _ in reader.found] + [len(line)]
    if begins[0]:
        raise _incomplete(line, where, 0)
    for (kind, value, begin, tag), end in zip(reader.found, begins[1:], strict=True):
        raw = tag
        if kind == "end":
            found = _END_TAG.match(line, begin)
            raw = found[0] if found else ""
        whole = begin + len(raw) if kind in ("start", "end") or raw else end
        if whole != end or (kind == "single" and line.startswith("</", begin)):
            raise _incomplete(line, where, whole if whole < end else begin)
        if kind == "text" and tokens and tokens[-1].kind == "text":
            last = tokens.pop()
            tokens.append(_Token(kind, last.value + value, last.begin, end))
        else:
            tokens.append(_Token(kind, value, begin, end))
    for token in tokens:
        if token.kind == "text" and (begun := _BEGINS_TAG.search(line, token.begin, token.end)):
            raise _incomplete(line, where, begun.start())
    return tokens


def _incomplete(line: str, where: str, at: int) -> DataError:
    begun = shown(line[at : at + 20])
    return DataError(f"{where}, column {at + 1}: {begun} begins no complete tag: complete it, or write &lt; for <")


class _Reader(HTMLParser):
    """Collects tokens: kind, name or text, place, and of a start tag the tag itself."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, str, int, str]] = []

    def _add(self, kind: str, value: str, raw: str | None = "") -> None:
        self.found.append((kind, value, self.getpos()[1], raw or ""))

    def set_cdata_mode(self, *_: Any, **__: Any) -> None:
        """No element's content is anything but text and tags, not even that of ``<title>`` in XML."""

    def handle_data(self, data: str) -> None:
        self._add("text", data)

    def handle_starttag(self, tag: str, _: Any) -> None:
        self._add("start", tag, self.get_starttag_text())

    def handle_startendtag(self, tag: str, _: Any) -> None:
        self._add("single", tag, self.get_starttag_text())

    def handle_endtag(self, tag: str) -> None:
        self._add("end", tag)

    def handle_comment(self, _: str) -> None:
        self._add("single", "")

    def handle_decl(self, _: str) -> None:
        self._add("single", "")

    def handle_pi(self, _: str) -> None:
        self._add("single", "")

    def unknown_decl(self, _: str) -> None:
        self._add("single", "")


class _Tree:
    """Pairs the tags of a line.

    Args:
        where: The file and the line, for errors.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._text: list[str] = []
        self._length = 0
        self._tags: list[Tag] = []
        self._places: list[_Token] = []
        self._open: list[int] = []
        self._breaks = False

    def add(self, token: _Token, raw: str) -> None:
        """Take the next token."""
        if token.kind == "text":
            self._add_text(token.value)
            return
        self._breaks |= token.value in _BREAKS
        if token.kind == "end":
            self._close(token, raw)
            return
        if token.kind == "start":
            self._open.append(len(self._tags))
        parents = self._open[:-1] if token.kind == "start" else self._open
        at = self._length
        self._tags.append(Tag(raw, "", at, at, parents[-1] if parents else -1, token.value in _BREAKS))
        self._places.append(token)

    def _add_text(self, text: str) -> None:
        if self._breaks and self._text and not (self._text[-1][-1:].isspace() or text[:1].isspace()):
            text = f" {text}"
        self._breaks = False
        self._text.append(text)
        self._length += len(text)

    def _close(self, token: _Token, raw: str) -> None:
        while self._open and self._name(self._open[-1]) != token.value:
            if self._name(self._open[-1]) not in _VOID:
                inner = self._tags[self._open[-1]].opening
                where = f"{self._where}, column {token.begin + 1}"
                raise DataError(f"{where}: {shown(raw)} comes before the end of {shown(inner)}: close that first")
            self._make_void(self._open.pop())
        if not self._open:
            raise DataError(f"{self._where}, column {token.begin + 1}: {shown(raw)} closes no tag of its line")
        index = self._open.pop()
        self._tags[index] = self._tags[index]._replace(closing=raw, end=self._length)

    def _name(self, index: int) -> str:
        return self._places[index].value

    def _make_void(self, index: int) -> None:
        """Take a tag for one without content: what seemed to be in it is in the pair around it."""
        parent = self._tags[index].parent
        for inner in range(index + 1, len(self._tags)):
            if self._tags[inner].parent == index:
                self._tags[inner] = self._tags[inner]._replace(parent=parent)

    def finish(self) -> MarkedText:
        """The text and its tags, once all tokens are there."""
        while self._open:
            index = self._open.pop()
            if self._name(index) not in _VOID:
                where = f"{self._where}, column {self._places[index].begin + 1}"
                raise DataError(f"{where}: {shown(self._tags[index].opening)} is not closed on its line")
            self._make_void(index)
        return MarkedText("".join(self._text), tuple(self._tags))
