"""What a program replaces or reads in its messages: placeholders, tags, and the keys of accelerators."""

from __future__ import annotations

import re
from collections import Counter

#: Flags, width, precision and length of a conversion, also GCC's ``%q#T`` and ``%wu``.
_FORMAT = r"[-+#0Iqw]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh?|ll?|[zjL](?=[a-zA-Z]))?"

_PLACEHOLDER = re.compile(
    rf"""
      %(?:\d+\$|\(\w+\))'?{_FORMAT}(?P<numbered>[a-zA-Z])   # %2$s of gettext, %(name)s of Python
    | (?<![\d~])%L?[1-9]\d?(?![$\d]|\.\d)                        # %1 of Qt and KDE
    | %\{{\w+\}} | %[A-Z][A-Z_]{{2,}}                       # %{{name}} of Ruby, %PRODUCTNAME of LibreOffice
    | (?<![\d~])%{_FORMAT}(?P<plain>[a-zA-Z])               # %s, %-10.3f; not of "50%ige"
    | %'(?P<grouped>[diu])                                  # %'d
    | \{{[\w.:!]*\}}                                        # {{}}, {{0}}, {{name}}
    | \$(?:\{{\w+\}}|\(\w+\)|[a-zA-Z_]\w*(?:\.\w+)*)        # $HOME, ${{name}}, $(EXIF_HOUR)
    """,
    re.VERBOSE | re.ASCII,
)

_TAG = re.compile(r"<(/?)([a-zA-Z][\w:-]*)(?:\s[^<>]*)?/?>", re.ASCII)

#: Tags of HTML that need not be closed.
_UNCLOSED = frozenset({"br", "hr", "img", "li", "p"})

#: A letter of an alphabet: the key of a keyboard, unlike Chinese characters and kana.
_LETTER = r"[^\W\d_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"

#: A character that marks the key of a menu's entry: ``_File``, ``&Öffnen``, ``E~xit``, ``ファイル(_F)``. Not of
#: ``South_Georgia`` and ``B&W``, of an entity (``&amp;``), or of a context (``addon_state^Ready``).
_KEY = re.compile(
    rf"(?:^[_&~](?=\w)|(?<!\w)_(?={_LETTER})|_(?=[a-z])|(?<![A-Z\d&~])[&~](?={_LETTER})|(?<=[A-Z])[&~](?=[a-z]))(?!\w{{0,30}}[;^])"
)


def placeholders(text: str) -> Counter[str]:
    """The placeholders and tags of a text, with how often each occurs.

    Widths, precisions and positions do not count: ``%-8s`` and ``%2$s`` are ``%s``. Something in angle brackets is a
    tag if it is closed in the text, or need not be in HTML; ``<file>`` is a word.
    """
    if not any(mark in text for mark in "%{$<"):
        return Counter()
    found = Counter(_name(match) for match in _PLACEHOLDER.finditer(text.replace("%%", "")))
    tags = [(closing, name.lower()) for closing, name in _TAG.findall(text)]
    closed = {name for closing, name in tags if closing} | _UNCLOSED
    found.update(f"<{name}>" for closing, name in tags if name in closed and not closing)
    return found


def _name(match: re.Match[str]) -> str:
    conversion = match["numbered"] or match["plain"] or match["grouped"]
    if conversion is None:
        return match[0]
    return "%d" if conversion in "iu" else f"%{conversion}"


def accelerators(text: str) -> Counter[str]:
    """How often each character marks the key of an accelerator in a text."""
    return Counter(_KEY.findall(text))
