"""Pairs from XML: translation memories (TMX 1.1 to 2.0), and the test sets of WMT since 2021.

Only the current unit is kept, and the memory that a file can make the parser use is bounded. XML entities are refused,
and no DTD is read. sacrebleu has a reader of test sets, but as a private function that keeps the whole tree, resolves
entities and fails on damaged files with assertions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser, ParseError

from data_prep.sources.texts import Pair, Text, opened
from dstransformer.errors import DataError, shown
from dstransformer.io.compression import DamagedDataError, decompressed
from dstransformer.io.text import MAX_LINE_BYTES

#: Bytes that are parsed at a time.
_CHUNK = 1 << 16

#: Maximum bytes of a tag or a comment, which the parser reads again with each chunk until it is complete.
_MAX_TAG_BYTES = 2**20

#: Maximum depth of elements, different names of elements and attributes, and languages that an error names.
_MAX_DEPTH, _MAX_NAMES, _MAX_LANGUAGES = 100, 1000, 10

#: What a segment costs in memory beside its text, roughly.
_SEGMENT_BYTES = 200

_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_BLANKS = re.compile(r"[ \t\r\n]+")

#: Elements in a segment that hold codes of another format, such as HTML tags, and not text. What `hi` holds is text
#: (TMX 1.4b, "Content Markup").
_CODES = frozenset({"bpt", "ept", "it", "ph", "ut", "sub"})


def iter_xml_pairs(text: Text, src_lang: str, tgt_lang: str) -> Iterator[Pair]:
    """Iterate over the pairs of a translation memory or a test set. A unit without one of the languages is left out.

    Of several texts in a language the one with exactly its code is taken, else the first; see :func:`is_in`.

    Raises:
        DataError: The file is damaged, is of another kind, or has no unit with both languages.
    """
    units = _Units(src_lang, tgt_lang)
    parser = _Parser(target=units, forbid_dtd=True)
    fed = 0
    try:
        with opened(text) as file:
            content = decompressed(file)
            while chunk := content.read(_CHUNK):
                fed += len(chunk)
                parser.feed(chunk)
                if fed - parser.parser.CurrentByteIndex > _MAX_TAG_BYTES:
                    raise _RefusedError(f"a tag or a comment of more than {_MAX_TAG_BYTES:,} bytes")
                yield from units.take()
        parser.close()
    except _RefusedError as error:
        raise DataError(f"{text}, line {parser.parser.CurrentLineNumber}: {error}") from None
    except DefusedXmlException:
        raise DataError(
            f"{text}, line {parser.parser.CurrentLineNumber}: it has XML entities or an internal DTD, which are "
            "refused: remove the text between [ and ] in <!DOCTYPE …>"
        ) from None
    except ParseError as error:
        reason = shown(str(error).partition(": line")[0], quote=False)
        raise DataError(
            f"{text}, line {error.position[0]}: truncated or not well-formed XML ({reason}); copy the file again"
        ) from None
    except DamagedDataError:
        line = parser.parser.CurrentLineNumber
        raise DataError(
            f"{text}: the compressed data are truncated or damaged after line {line}; copy the file again"
        ) from None
    yield from units.take()
    if not units.found:
        languages = ", ".join(shown(name, quote=False) for name in units.languages) or "none"
        raise DataError(
            f"{text} has no unit with {src_lang} and {tgt_lang}; its languages are {languages}: correct --src-lang and "
            "--tgt-lang"
        )


def is_in(language: str, wanted: str) -> bool:
    """Whether a language tag is in the range ``wanted`` (RFC 4647, basic filtering); ``-`` and ``_`` are the same.

    ``en`` takes ``en`` and ``en-US``; ``pt-BR`` takes neither ``pt`` nor ``pt-PT``.
    """
    tag, prefix = (name.replace("_", "-").lower() for name in (language, wanted))
    return tag == prefix or tag.startswith(f"{prefix}-")


class _RefusedError(Exception):
    """The file is refused; the message says why, and the caller adds the line."""


class _Parser(DefusedXMLParser):  # type: ignore[misc]
    """Refuses entities and their declarations. A reference to an external DTD is allowed; it is not read."""

    def defused_start_doctype_decl(self, name: str, sysid: str, pubid: str, has_internal_subset: bool) -> None:
        """See ``defusedxml``."""
        if has_internal_subset:
            super().defused_start_doctype_decl(name, sysid, pubid, has_internal_subset)


class _Units:
    """Collects pairs while the parser calls it: of each ``tu`` of a translation memory, of each ``doc`` of a test set.

    Attributes:
        found: Whether there has been a pair.
        languages: Some of the languages of the file.
    """

    def __init__(self, src_lang: str, tgt_lang: str) -> None:
        self._wanted = (src_lang, tgt_lang)
        self._pairs: list[Pair] = []
        self.found = False
        self.languages: dict[str, None] = {}
        self._names: set[str] = set()
        self._depth = 0
        self._held = 0  # bytes of the unit, roughly
        self._sides: tuple[dict[str, str], dict[str, str]] = ({}, {})  # its segments by their ids
        self._ranks = [0, 0]  # how well the language of a side fits: 0 none, 1 a variant, 2 exactly
        self._side: int | None = None
        self._segment: str | None = None  # the id of the segment that is being read, else None
        self._fragments: list[str] = []  # its text
        self._inside: list[bool] = []  # the elements around the text in it: whether they hold codes

    def take(self) -> list[Pair]:
        """The pairs that have been found since the last call."""
        pairs, self._pairs = self._pairs, []
        return pairs

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """An element begins."""
        name = tag.rpartition("}")[2]
        self._check(tag, attributes)
        if self._segment is not None:
            self._inside.append(name in _CODES or (bool(self._inside) and self._inside[-1]))
        elif name in ("tu", "doc"):
            self._sides, self._held, self._side = ({}, {}), 0, None
            self._ranks = [3, 3] if "testsuite" in attributes else [0, 0]
        elif name in ("tuv", "src", "ref"):
            self._side = self._side_of(attributes.get(_LANG) or attributes.get("lang") or "")
        elif name == "hyp":  # a system's translation
            self._side = None
        elif name == "seg" and self._side is not None:
            self._segment = attributes.get("id", str(len(self._sides[self._side])))

    def _check(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and (root := tag.rpartition("}")[2]) not in ("tmx", "dataset"):
            raise _RefusedError(f"<{shown(root, quote=False)}> is neither <tmx> nor the <dataset> of a test set of WMT")
        if self._depth > _MAX_DEPTH:
            raise _RefusedError(f"elements nested more than {_MAX_DEPTH} deep")
        for name in (tag, *attributes):
            if name not in self._names:
                self._names.add(name)
                if len(self._names) > _MAX_NAMES:
                    raise _RefusedError(f"more than {_MAX_NAMES} different names of elements and attributes")

    def _side_of(self, language: str) -> int | None:
        """The side that a text in a language is for; None if it is not wanted, or another one fits better."""
        if len(self.languages) < _MAX_LANGUAGES:
            self.languages[language] = None
        fits = [side for side, wanted in enumerate(self._wanted) if is_in(language, wanted)]
        exact = [side for side in fits if len(self._wanted[side]) == len(language)]
        for side in exact or fits:
            rank = 2 if exact else 1
            if rank > self._ranks[side]:
                self._ranks[side] = rank
                self._sides[side].clear()
                return side
        return None

    def data(self, text: str) -> None:
        """Text, or a part of it."""
        if self._segment is not None and not (self._inside and self._inside[-1]):
            self._fragments.append(text)
            self._hold(len(text))

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > MAX_LINE_BYTES:
            raise _RefusedError(f"a unit of more than {MAX_LINE_BYTES:,} bytes")

    def end(self, tag: str) -> None:
        """An element ends."""
        self._depth -= 1
        name = tag.rpartition("}")[2]
        if self._inside:
            self._inside.pop()
        elif self._segment is not None and self._side is not None:
            self._sides[self._side].setdefault(self._segment, _BLANKS.sub(" ", "".join(self._fragments)).strip(" "))
            self._hold(_SEGMENT_BYTES)
            self._segment = None
            self._fragments.clear()
        elif name in ("tu", "doc"):
            src, tgt = self._sides
            pairs = [(src[segment], tgt[segment]) for segment in src if segment in tgt]
            self._pairs += [pair for pair in pairs if name == "tu" or pair[1]]  # without a reference: not to be scored
            self.found = self.found or bool(pairs)
            self._sides = ({}, {})
