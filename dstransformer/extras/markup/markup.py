"""Sentences with inline tags, ``a <b>bold</b> word<br/>``: their text, and the tags with their places in it.

HTML and XML both work: names match in any case, HTML's void elements (``<br>``) need no end, and a ``<`` or ``&`` that
begins neither tag nor entity is text.
"""

from __future__ import annotations

import html
import re
from typing import NamedTuple

from dstransformer.data.tokenizer import plain_spaces
from dstransformer.errors import DataError, shown
from dstransformer.io.text import iter_lines

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

#: A comment, declaration or processing instruction; an end tag; or another, which may have any sign in quoted values.
_TAG = re.compile(
    r"""<!--.*?-->|<[!?](?!--)[^>]*>|</(?P<end>[A-Za-z][^\s/<>]*)[^<>]*>"""
    r"""|<(?P<start>[A-Za-z][^\s/>]*)(?:=\s*(?:"[^"]*"|'[^']*'|(?!["'\s]))|[^>=])*+>"""
)


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
    if (count := line.count("<")) > MAX_TAGS:
        raise DataError(f"{where} has {count:,} tags: give at most {MAX_TAGS:,}")
    found = list(_TAG.finditer(line))
    begins, ends = [0, *(tag.end() for tag in found)], [*(tag.start() for tag in found), len(line)]
    for begin, end in zip(begins, ends, strict=True):
        if begun := _BEGINS_TAG.search(line, begin, end):
            part = shown(line[begun.start() : begun.start() + 20])
            raise DataError(
                f"{where}, column {begun.start() + 1}: {part} begins no complete tag: complete it, or write &lt; for <"
            )
    texts = [html.unescape(line[begin:end]) for begin, end in zip(begins, ends, strict=True)]
    tree = _Tree(where, texts[0])
    for tag, text in zip(found, texts[1:], strict=True):
        tree.add(tag)
        tree.add_text(text)
    return tree.finish()


def check_markup(file: str) -> None:
    """Check the tags of every line of a file before the work begins.

    Raises:
        DataError: The tags of a line are not well-formed, or the file cannot be read.
    """
    for number, line in enumerate(iter_lines(file), 1):
        parse_markup(line, f"{file}, line {number}")


class _Tree:
    """Pairs the tags of a line.

    Args:
        where: The file and the line, for errors.
        text: What is before the first tag.
    """

    def __init__(self, where: str, text: str) -> None:
        self._where = where
        self._text = text
        self._tags: list[Tag] = []
        self._names: list[str] = []
        self._columns: list[int] = []
        self._open: list[int] = []
        self._breaks = False

    def add_text(self, text: str) -> None:
        """Take text that follows a tag."""
        if text:
            joined = not self._breaks or not self._text or self._text[-1].isspace() or text[0].isspace()
            self._text += text if joined else f" {text}"
            self._breaks = False

    def add(self, found: re.Match[str]) -> None:
        """Take the next tag."""
        name, at = (found["start"] or found["end"] or "").lower(), len(self._text)
        self._breaks |= name in _BREAKS
        if found["end"]:
            self._close(name, found)
            return
        self._tags.append(Tag(found[0], "", at, at, self._open[-1] if self._open else -1, name in _BREAKS))
        self._names.append(name)
        self._columns.append(found.start() + 1)
        if found["start"] and not found[0].endswith("/>"):
            self._open.append(len(self._tags) - 1)

    def _close(self, name: str, found: re.Match[str]) -> None:
        index, where = self._innermost(name), f"{self._where}, column {found.start() + 1}: {shown(found[0])}"
        if index is None:
            raise DataError(f"{where} closes no tag of its line")
        if self._names[index] != name:
            raise DataError(f"{where} comes before the end of {shown(self._tags[index].opening)}: close that first")
        self._open.pop()
        self._tags[index] = self._tags[index]._replace(closing=found[0], end=len(self._text))

    def _innermost(self, name: str) -> int | None:
        """The pair that is open, the last of them; but those before it that need no end, if they have another name.

        These have no content: what seemed to be in them is in the pair around them.
        """
        while self._open and self._names[self._open[-1]] in _VOID - {name}:
            void = self._open.pop()
            for inner in range(void + 1, len(self._tags)):
                if self._tags[inner].parent == void:
                    self._tags[inner] = self._tags[inner]._replace(parent=self._tags[void].parent)
        return self._open[-1] if self._open else None

    def finish(self) -> MarkedText:
        """The text and its tags, once all tags are there."""
        if (index := self._innermost("")) is not None:
            where = f"{self._where}, column {self._columns[index]}"
            raise DataError(f"{where}: {shown(self._tags[index].opening)} is not closed on its line")
        return MarkedText(self._text, tuple(self._tags))
