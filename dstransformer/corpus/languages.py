"""Language codes of different kinds, compared: ``de``, ``deu``, ``de_DE`` and ``deu_Latn`` are all German.

A code is a language of two or three letters, then perhaps a script of four and a region of two (BCP 47), with ``-`` or
``_`` between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dstransformer.errors import DataError, UserError, shown

#: ISO 639-1 and ISO 639-3.
_ISO_639_1 = (
    "aa:aar ab:abk ae:ave af:afr ak:aka am:amh an:arg ar:ara as:asm av:ava ay:aym az:aze ba:bak be:bel "
    "bg:bul bi:bis bm:bam bn:ben bo:bod br:bre bs:bos ca:cat ce:che ch:cha co:cos cr:cre cs:ces cu:chu "
    "cv:chv cy:cym da:dan de:deu dv:div dz:dzo ee:ewe el:ell en:eng eo:epo es:spa et:est eu:eus fa:fas "
    "ff:ful fi:fin fj:fij fo:fao fr:fra fy:fry ga:gle gd:gla gl:glg gn:grn gu:guj gv:glv ha:hau he:heb "
    "hi:hin ho:hmo hr:hrv ht:hat hu:hun hy:hye hz:her ia:ina id:ind ie:ile ig:ibo ii:iii ik:ipk io:ido "
    "is:isl it:ita iu:iku ja:jpn jv:jav ka:kat kg:kon ki:kik kj:kua kk:kaz kl:kal km:khm kn:kan ko:kor "
    "kr:kau ks:kas ku:kur kv:kom kw:cor ky:kir la:lat lb:ltz lg:lug li:lim ln:lin lo:lao lt:lit lu:lub "
    "lv:lav mg:mlg mh:mah mi:mri mk:mkd ml:mal mn:mon mr:mar ms:msa mt:mlt my:mya na:nau nb:nob nd:nde "
    "ne:nep ng:ndo nl:nld nn:nno no:nor nr:nbl nv:nav ny:nya oc:oci oj:oji om:orm or:ori os:oss pa:pan "
    "pi:pli pl:pol ps:pus pt:por qu:que rm:roh rn:run ro:ron ru:rus rw:kin sa:san sc:srd sd:snd se:sme "
    "sg:sag sh:hbs si:sin sk:slk sl:slv sm:smo sn:sna so:som sq:sqi sr:srp ss:ssw st:sot su:sun sv:swe "
    "sw:swa ta:tam te:tel tg:tgk th:tha ti:tir tk:tuk tl:tgl tn:tsn to:ton tr:tur ts:tso tt:tat tw:twi "
    "ty:tah ug:uig uk:ukr ur:urd uz:uzb ve:ven vi:vie vo:vol wa:wln wo:wol xh:xho yi:yid yo:yor za:zha "
    "zh:zho "
)

_ALPHA3 = dict(pair.split(":") for pair in _ISO_639_1.split())

#: Macrolanguages of ISO 639-3, and the member that data sets mean by them.
_MEMBERS = {
    "ara": "arb", "aym": "ayr", "aze": "azj", "est": "ekk", "fas": "pes", "grn": "gug", "kur": "kmr", "lav": "lvs",
    "mlg": "plt", "mon": "khk", "msa": "zsm", "nep": "npi", "nor": "nob", "ori": "ory", "orm": "gaz", "pus": "pbt",
    "que": "quy", "sqi": "als", "swa": "swh", "uzb": "uzn", "yid": "ydd", "zho": "cmn",
}  # fmt: skip

#: Scripts and regions that are meant where a code has none, of languages with several. Of others the region is named
#: like the language: ``fr_FR``.
_USUAL = {"arb": ("Arab", None), "cmn": ("Hans", "CN"), "eng": ("Latn", "US"), "srp": ("Cyrl", "RS")}

#: Maximum codes that an error lists.
_MAX_LISTED = 40


class LanguageCode(NamedTuple):
    """A code in parts: the language in three letters (of a macrolanguage its usual member), script and region."""

    language: str
    script: str | None
    region: str | None


def parse_code(code: str) -> LanguageCode:
    """Divide a code into its parts. Parts that are neither a script nor a region are left out."""
    first, *rest = re.split("[-_]", code)
    language = _ALPHA3.get(first.lower(), first.lower())
    script = next((part.title() for part in rest if len(part) == 4 and part.isalpha()), None)
    region = next((part.upper() for part in rest if len(part) == 2), None)
    language = _MEMBERS.get(language, language)
    if language == "cmn" and script is None and region is not None:
        script = "Hant" if region in ("HK", "MO", "TW") else "Hans"
    return LanguageCode(language, script, region)


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


def _usual(language: str) -> tuple[str | None, str | None]:
    named_alike = next((alpha2.upper() for alpha2, alpha3 in _ALPHA3.items() if alpha3 == language), None)
    return _USUAL.get(language, (None, named_alike))
