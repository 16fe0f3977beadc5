"""What a program replaces or reads in its messages: placeholders, tags, and the keys of accelerators."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

#: Flags, width, precision and length of a conversion.
_FORMAT = r"(?:[+#0I]|-(?=\d))*(?:[1-9]\d*|\*)?(?:\.(?:\d+|\*))?(?:hh?|ll?|[zjL])?"

_PERCENT = rf"""
      %(?P<named>\(\w+\)){_FORMAT}[a-zA-Z]                      # %(name)s of Python
    | %\d+\$[qw][+#]?(?P<numbered_gcc>[a-zA-Z])                 # %2$qs of GCC
    | %\d+\$'?{_FORMAT}(?P<numbered>[diouxXeEfFgGcspm])         # %2$s of gettext
    | %\{{\w+\}} | %[A-Z][A-Z_]{{2,}} | %<PRI\w+>               # of Ruby, of LibreOffice (%PRODUCTNAME), of C
    | %[qw][+#]?(?P<gcc>[a-zA-Z])                               # %qs, %q#T, %wu
    | (?<![\d~])(?<!\d\s)%'?{_FORMAT}(?P<plain>[diouxXeEfFgGcspm])  # %s, %-10.3f; not of "50%ige"
"""

_OTHER = r"""
    | \{\w*(?:[.\[!:][^{}]{0,30})?\}                           # {}, {0}, {name:>10}
    | (?<!\w)\$(?:\{\w+\}|\(\w+\)|(?!US\b)[a-zA-Z_]\w*(?:\.\w+)*)   # $HOME, ${name}, $(EXIF_HOUR)
"""

_PLACEHOLDER = re.compile(_PERCENT + _OTHER, re.VERBOSE | re.ASCII)

#: Arguments of Qt and KDE, %1, %2 or %L1, in messages that have a first one; "%50" alone is a share.
_QT = r"%L?[1-9]\d?(?![$\d]|\.\d) |"
_FIRST_OF_QT = re.compile(r"%L?1(?![$\d]|\.\d)")
_PLACEHOLDER_OF_QT = re.compile(_QT + _PERCENT + _OTHER, re.VERBOSE | re.ASCII)

#: In the format of a date, whose codes differ between languages: ``%B %d``, ``%e. %B``.
_DATE, _OF_DATE = re.compile(r"%[-_O]?[AaBbHIMSTYklyj](?![a-zA-Z])"), re.compile(r"%[-_O]?[a-zA-Z]")

#: What an address may hold as it is, and %20 and other bytes in it.
_ADDRESS, _BYTE = re.compile(r"\b[a-z]{1,10}://\S+"), re.compile(r"%[0-9A-Fa-f]{2}")

_TAG = re.compile(r"<(/?)([a-zA-Z][\w:-]*)(?:\s[^<>]*?)?(/?)>", re.ASCII)

#: Tags of HTML that need not be closed, or whose end may be left out.
_UNCLOSED = frozenset({"br", "hr", "img", "li", "p"})

#: What may be the mark of a key; an entity (``&amp;``) is none, nor is a usual one without its end.
_MARK = r"(?:[_~]|&(?!\w{1,30};|(?:amp|lt|gt|quot|apos|nbsp)\b))"
_MARKED, _ATTACHED = re.compile(rf"(?<![_&~]){_MARK}(?=\w)"), re.compile(rf"(?<=\S){_MARK}|{_MARK}(?=\S)")

#: In words without keys: addresses, variables, contexts (``addon_state^Ready``), names such as ``__init__``.
_KEYLESS = re.compile(r"[@$^]|//|_.*_", re.DOTALL)

#: A key beside its entry, an entity, or the mark of a key.
_KEY = re.compile(r"\([_&~]\w\)|&\w{1,30};|[_&~]")

_KANA_OR_CHINESE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uff66-\uff9f]")

#: A text has one key, or two where two entries are in it. One with a key inside a word is no longer than a label.
_MOST_KEYS, _LONGEST_LABEL = 2, 100


def placeholders(text: str) -> Counter[str]:
    """The placeholders and tags of a message, with how often each occurs.

    Widths, precisions and positions do not count: ``%-8s`` and ``%2$s`` are ``%s``. Something in angle brackets is a
    tag if it is closed in the text, or need not be in HTML; ``<file>`` is a word. The codes of dates are left out. In
    prose, ``$name`` and the like can be other things.
    """
    counts = Counter[str]()
    if any(mark in text for mark in "%{$"):
        plain = _ADDRESS.sub(lambda address: _BYTE.sub("", address[0]), text).replace("%%", "")
        if _DATE.search(plain):
            plain = _OF_DATE.sub("", plain)
        pattern = _PLACEHOLDER_OF_QT if _FIRST_OF_QT.search(plain) else _PLACEHOLDER
        counts.update(map(_name, pattern.finditer(plain)))
    if "<" in text:
        tags = [(slash, name.lower(), end) for slash, name, end in _TAG.findall(text)]
        closed = {name for slash, name, end in tags if slash or end} | _UNCLOSED
        counts.update(
            f"<{slash}{name}>" for slash, name, _ in tags if name in closed and not (slash and name in _UNCLOSED)
        )
    return counts


def _name(match: re.Match[str]) -> str:
    if match["named"]:
        return f"%{match['named']}"
    conversion = match["numbered"] or match["numbered_gcc"] or match["gcc"] or match["plain"]
    if conversion is None:
        return match[0]
    return "%d" if conversion in "iu" else f"%{conversion}"


def without_marks(text: str) -> str:
    """The words of a message: without placeholders, tags, entities and keys."""
    if not any(mark in text for mark in "%{$<_&~"):
        return text
    return _KEY.sub("", _PLACEHOLDER_OF_QT.sub(" ", _TAG.sub(" ", text)))


def accelerators(text: str) -> int:
    """How many keys of menu entries a message surely marks: ``_File``, ``E~xit``, ``أ_ضف``, ``(&F)``; at most two.

    Within a word a letter is no key where identifiers and names have it: ``South_Georgia``, ``B&W``, ``list_view``.
    """
    text = _plain(text)
    marked = [match.start() for match in _MARKED.finditer(text)]
    return sum(_is_key(text, at) for at in marked) if len(marked) <= _MOST_KEYS else 0


def may_have_key(text: str) -> bool:
    """Whether anything in a message can be the mark of a key: also ``Auto_Include``, which reads like an identifier.

    A text in capitals is a name, whose translation can have such marks: ``ALPHA``, ``ألفا_ك``.
    """
    return text.isupper() or _ATTACHED.search(_plain(text)) is not None


def _plain(text: str) -> str:
    """The text without tags and joiners, and with a letter without case in place of each combining mark."""
    if not any(mark in text for mark in "_&~"):
        return text
    kinds = ((letter, unicodedata.category(letter)) for letter in _TAG.sub("", text))
    return "".join("\u05d0" if kind[0] == "M" else letter for letter, kind in kinds if kind != "Cf")


def _is_key(text: str, at: int) -> bool:
    before, after = text[at - 1 : at], text[at + 1]
    word = text[text.rfind(" ", 0, at) + 1 :].partition(" ")[0]
    if _KEYLESS.search(word) or not after.isalpha() or (at and _KANA_OR_CHINESE.match(after)):
        return False
    if not before.isalnum():
        return True
    if _KANA_OR_CHINESE.match(before) or len(text) > _LONGEST_LABEL or _are_words(text, at, 3, 4):
        return False
    if text[at] == "_":
        return not after.isupper() or (before.isupper() and not _are_words(text, at, 2, 2))
    return not (after.isupper() and before.isupper())


def _are_words(text: str, at: int, first: int, second: int) -> bool:
    """Whether what a mark divides has at least so many letters on its sides: ``drag&drop``, ``list_view``."""
    before, after = text[max(at - first, 0) : at], text[at + 1 : at + 1 + second]
    return len(before) == first and len(after) == second and before.isalnum() and after.isalnum()
