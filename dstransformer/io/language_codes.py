"""Language codes of different kinds, compared: ``de``, ``deu``, ``de_DE`` and ``deu_Latn`` are all German.

A code is a language of two or three letters, then perhaps a script of four and a region of two (BCP 47), with ``-`` or
``_`` between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dstransformer.errors import DataError, UserError, shown
from dstransformer.io.languages import language, short_tag

#: Norwegian without a further word is Bokmål.
_DOMINANT = {"nb": "no"}

#: Regions that are meant where a code has none. Of other languages the region is named like the language: ``fr_FR``.
_USUAL_REGIONS = {"en": "US", "sr": "RS", "zh": "CN"}

#: Maximum codes that an error lists.
_MAX_LISTED = 40


class LanguageCode(NamedTuple):
    """A code in parts: the language as BCP 47 writes it (``zh`` for ``cmn``), script and region."""

    language: str
    script: str | None
    region: str | None


def parse_code(code: str) -> LanguageCode:
    """Divide a code into its parts. Parts that are neither a script nor a region are left out."""
    first, *rest = re.split("[-_]", code)
    known, _, known_script = (short_tag(first) or first.lower()).partition("-")
    script = next((part.title() for part in rest if len(part) == 4 and part.isalpha()), known_script or None)
    region = next((part.upper() for part in rest if len(part) == 2), None)
    name = _DOMINANT.get(known, known)
    if name == "zh" and script is None and region is not None:
        script = "Hant" if region in ("HK", "MO", "TW") else "Hans"
    return LanguageCode(name, script, region)


def matching_codes(wanted: str, codes: Sequence[str]) -> list[str]:
    """The codes that mean the language ``wanted``: several if it is not clear which one.

    A script or a region must be the same only where both codes have one. Of several such codes the one with the same
    parts is taken, or else the one without script and region or with the usual ones: ``zho_Hans`` for ``zh``, ``fr_FR``
    for ``fr``. ``zh_TW`` is nearer to ``zh-Hant`` than ``zh``, whose usual script is another.
    """
    meant = parse_code(wanted)
    agreeing = [code for code in codes if _agree(parse_code(code), meant)]
    found = [code for code in agreeing if _agree(_with_usual(parse_code(code)), meant)] or agreeing
    for choice in (
        [code for code in found if _plain(code) == _plain(wanted)],
        [code for code in found if parse_code(code) == meant],
        [code for code in found if _is_usual(parse_code(code))],
    ):
        if len(choice) == 1:
            return choice
    return found


def divide_codes(both: str, codes: Sequence[str]) -> tuple[str, str]:
    """The two codes of a pair such as ``en-de``.

    A code may have a ``-`` too. The pair is divided where both sides mean one of ``codes``, or else at the first ``-``.

    Raises:
        UserError: It is not two codes.
    """
    parts = both.split("-")
    cuts = [("-".join(parts[:cut]), "-".join(parts[cut:])) for cut in range(1, len(parts))]
    if not cuts or not all(parts):
        raise UserError(f"--langpair {shown(both)}: name two languages, such as en-de")
    return next((cut for cut in cuts if all(matching_codes(code, codes) for code in cut)), cuts[0])


def find_code(wanted: str, codes: Sequence[str], where: str) -> str:
    """The code among ``codes`` that means the language ``wanted``.

    Raises:
        DataError: None does, or several do. The message names ``where``.
    """
    found = matching_codes(wanted, codes)
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(f"{where} has several texts in {wanted}: {', '.join(sorted(found))}; name one of these codes")
    raise DataError(f"{where} has no text in {wanted}; it has {list_codes(codes)}")


def list_codes(codes: Sequence[str]) -> str:
    """The codes in alphabetical order, for a message."""
    names = sorted(set(codes))
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return shown(", ".join(names[:_MAX_LISTED]) or "none", quote=False, limit=500) + more


def _plain(code: str) -> str:
    return code.replace("_", "-").lower()


def _agree(one: LanguageCode, other: LanguageCode) -> bool:
    return one.language == other.language and all(
        None in pair or pair[0] == pair[1] for pair in ((one.script, other.script), (one.region, other.region))
    )


def _is_usual(code: LanguageCode) -> bool:
    script, region = _usual(code.language)
    return code.script in (None, script) and code.region in (None, region)


def _with_usual(code: LanguageCode) -> LanguageCode:
    """The code with the usual script and region where it has none."""
    script, region = _usual(code.language)
    return LanguageCode(code.language, code.script or script, code.region or region)


def _usual(code: str) -> tuple[str | None, str | None]:
    return language(code).script, _USUAL_REGIONS.get(code, code.upper())
