"""Pairs from the catalogues of gettext, which hold the messages of programs: ``.po``, and ``.mo``, compiled."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.sources.texts import Text, opened
from dstransformer.errors import DataError, shown
from dstransformer.io.compression import DamagedDataError, decompressed
from dstransformer.io.languages import matching_codes
from dstransformer.io.requirements import check_installed

#: Maximum bytes of a catalogue, which is read whole.
_MAX_BYTES = 256 * 2**20

_BLANKS = re.compile(r"[ \t\r\n]+")

Pair = tuple[str, str]


def iter_messages(text: Text, src_lang: str, tgt_lang: str) -> Iterator[Pair]:
    """Iterate over the messages of a catalogue that are translated, each with its line ends as spaces.

    A message with plural forms is two pairs: the singular with the first form, and the plural with the last. Fuzzy and
    obsolete entries are left out.

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
    for message, translation in _pairs(catalogue):
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


def _pairs(catalogue: Any) -> Iterator[Pair]:
    for entry in catalogue:
        if entry.obsolete or "fuzzy" in getattr(entry, "flags", ()):
            continue
        forms = [form for _, form in sorted(entry.msgstr_plural.items())]
        if len(forms) > 1:
            yield entry.msgid, forms[0]
        yield (entry.msgid_plural, forms[-1]) if forms else (entry.msgid, entry.msgstr)


def _is_swapped(header: dict[str, str], text: Text, src_lang: str, tgt_lang: str) -> bool:
    """Whether the messages are of the target language, and their translations of the source language.

    Messages are in English unless the header says otherwise.
    """
    name = text.member or str(text.path)
    into = re.split("[@.]", header.get("Language", "").strip())[0] or _language_of_name(name)
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


def _language_of_name(name: str) -> str:
    """The language that the place of a catalogue says: ``de/LC_MESSAGES/apt.mo``."""
    parts = Path(name).parts
    return parts[-3].partition("@")[0] if len(parts) > 2 and parts[-2] == "LC_MESSAGES" else ""
