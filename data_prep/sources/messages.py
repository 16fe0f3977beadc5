"""Pairs from the catalogues of gettext, which hold the messages of programs: ``.po``, and ``.mo``, compiled."""

from __future__ import annotations

import gettext
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from data_prep.sources.texts import Pair, Text, opened
from dstransformer.errors import DataError, shown
from dstransformer.io.compression import DamagedDataError, decompressed
from dstransformer.io.languages import matching_codes
from dstransformer.io.requirements import check_installed

#: Maximum bytes of a catalogue, which is read whole.
_MAX_BYTES = 256 * 2**20

#: A number of things that takes the usual plural, in Arabic too, which has forms of zero, of two, and above ten.
_SEVERAL = 5

_BLANKS = re.compile(r"[ \t\r\n]+")


def iter_messages(text: Text, src_lang: str, tgt_lang: str) -> Iterator[Pair]:
    """Iterate over the messages of a catalogue that are translated, each with its line ends as spaces.

    A message with plural forms is two pairs: the singular with the form of one thing, and the plural with that of
    several, by the formula of the header or else that of the language. Fuzzy and obsolete entries are left out.

    Raises:
        UserError: polib is not installed.
        DataError: The file is damaged, does not say its language, or has other languages.
    """
    check_installed("polib")
    import polib

    try:
        with opened(text) as file:
            content = decompressed(file).read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise DataError(f"{text}: larger than {_MAX_BYTES:,} bytes; divide it")
        if text.ending == ".mo":
            _check_complete(content)
            catalogue: Any = polib.mofile(content)
        else:
            # With a line end, as polib would read a file that has this name.
            catalogue = polib.pofile(f"{content.decode(polib.detect_encoding(content, True))}\n")
    except DamagedDataError:
        raise DataError(f"{text}: the compressed data are truncated or damaged; copy the file again") from None
    except (OSError, ValueError, LookupError, struct.error) as error:
        reason = shown(next(iter(str(error).splitlines()), ""), quote=False, limit=120)
        raise DataError(f"{text} is not a catalogue of gettext, or damaged ({reason}); copy the file again") from None
    swapped = _is_swapped(catalogue.metadata, text, src_lang, tgt_lang)
    for message, translation in _pairs(catalogue, src_lang if swapped else tgt_lang):
        pair = tuple(_BLANKS.sub(" ", side).strip() for side in (message, translation))
        if all(pair):
            yield (pair[1], pair[0]) if swapped else (pair[0], pair[1])


def _check_complete(content: bytes) -> None:
    """Check that the strings of a compiled catalogue are in it; polib takes what is there of one.

    Raises:
        ValueError, struct.error: They are not.
    """
    order = "<" if content[:4] == b"\xde\x12\x04\x95" else ">"
    count, *tables = struct.unpack_from(f"{order}3I", content, 8)
    for table in tables:
        places = struct.unpack_from(f"{order}{2 * count}I", content, table)
        if any(length + offset > len(content) for length, offset in zip(places[::2], places[1::2], strict=True)):
            raise ValueError("it ends within a message")


def _pairs(catalogue: Any, language: str) -> Iterator[Pair]:
    single = several = 0
    if any(entry.msgid_plural for entry in catalogue):
        form_of = _plural_rule(catalogue.metadata.get("Plural-Forms", ""), language)
        single, several = form_of(1), form_of(_SEVERAL)
    for entry in catalogue:
        if entry.obsolete or "fuzzy" in getattr(entry, "flags", ()):
            continue
        forms = entry.msgstr_plural
        if forms and single != several:
            yield entry.msgid, forms.get(single, "")
        yield (entry.msgid_plural, forms.get(several, forms[max(forms)])) if forms else (entry.msgid, entry.msgstr)


def _plural_rule(header: str, language: str) -> Callable[[int], int]:
    """Which form of a message a number of things takes: by the header, else by CLDR's rule of the language."""
    stated = re.search(r"plural\s*=\s*([^;]+)", header)
    with suppress(ValueError, ZeroDivisionError):  # "EXPRESSION", which nobody filled in
        rule = gettext.c2py(stated[1] if stated else "")
        rule(1), rule(_SEVERAL)
        return rule
    check_installed("babel")
    from babel.core import UnknownLocaleError
    from babel.messages.plurals import get_plural

    with suppress(UnknownLocaleError, ValueError):
        return gettext.c2py(get_plural(language.replace("-", "_")).plural_expr)
    return gettext.c2py("n != 1")


def _is_swapped(header: dict[str, str], text: Text, src_lang: str, tgt_lang: str) -> bool:
    """Whether the messages are of the target language, and their translations of the source language.

    Messages are in English unless the header says otherwise.
    """
    into = re.split("[@.]", header.get("Language", "").strip())[0]
    folders = Path(text.member or text.path).parts[:-1]
    if not into and len(folders) > 1 and folders[-1] == "LC_MESSAGES":  # de/LC_MESSAGES/apt.mo
        into = folders[-2].partition("@")[0]
    if not into:
        raise DataError(
            f"{text} does not say its language: give it a line 'Language: {tgt_lang}\\n' in its header, or put it into "
            f"a folder {tgt_lang}/LC_MESSAGES"
        )
    stated = header.get("X-Source-Language", "").strip()
    codes = ("en" if stated in ("", "C", "POSIX") else stated, into)
    for swapped, wanted in enumerate(((src_lang, tgt_lang), (tgt_lang, src_lang))):
        if all(matching_codes(one, [code]) for one, code in zip(wanted, codes, strict=True)):
            return bool(swapped)
    raise DataError(f"{text} translates from {codes[0]} into {codes[1]}, not from {src_lang} into {tgt_lang}")
