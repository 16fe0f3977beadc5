"""The table of languages: what the text of a language looks like, what other tools call it, and codes compared.

``langcodes`` supplies codes and usual scripts (ISO 639, ISO 15924, CLDR's likely subtags); only what it lacks stands
here. What the table does not know is None, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import islice
from typing import NamedTuple

import langcodes
from fontTools import unicodedata
from langcodes.data_dicts import LIKELY_SUBTAGS

from dstransformer.errors import ConfigError, DataError, UserError, shown

_CODE_ADVICE = "write a code such as en, deu or zho_Hans (ISO 639, or BCP 47)"

#: Stands for several languages on one side (ISO 639-2).
MULTIPLE = "mul"

#: Scripts that are mixed in one text, by the code of the mixture (ISO 15924).
_MIXTURES = {
    "Hans": ("Hani", "Bopo"), "Hant": ("Hani", "Bopo"), "Hanb": ("Hani", "Bopo"), "Hani": ("Hani", "Bopo"),
    "Jpan": ("Hani", "Hira", "Kana"), "Hrkt": ("Hira", "Kana"), "Kore": ("Hang", "Hani"), "Aran": ("Arab",),
    "Cyrs": ("Cyrl",), "Latf": ("Latn",), "Latg": ("Latn",), "Geok": ("Geor",), "Syre": ("Syrc",), "Syrj": ("Syrc",),
    "Syrn": ("Syrc",),
}  # fmt: skip

_CHINESE = frozenset(("Hans", "Hant", "Hanb", "Hani", "Bopo"))

#: Scripts without a mark between words, Chinese and Japanese aside: BLEU's ``13a`` takes a sentence for one word.
_UNDIVIDED = frozenset(("Thai", "Laoo", "Khmr", "Mymr", "Tibt", "Lana", "Tale", "Talu", "Tavt", "Java", "Bali"))

#: Scripts of letters that BLEU's ``13a`` is not for, and how many lines of a text tell.
_NOT_13A = _UNDIVIDED | {"Hani", "Bopo", "Hira", "Kana", "Hang"}
_SAMPLE = 1000

#: Marks that end a sentence before a space, of all scripts. Greek's question mark is the semicolon of others.
SPACED_ENDS = ".!?…؟۔।॥։።፧།༎"

#: Marks that end a sentence with or without a space after them.
UNSPACED_ENDS = "。！？။។៕"

#: Languages of which fastText's model knows the text under another code than BCP 47's.
_FASTTEXT = {"fil": "tl", "nb": "no", "gsw": "als", "bho": "bh", "sr-Latn": "sh"}

#: The languages that fastText's model lid.176 names, by its own codes.
_FASTTEXT_CODES = (
    "af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb ckb co cs cv cy da de "
    "diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom gu gv he hi hif hr hsb ht hu hy ia id ie ilo "
    "io is it ja jbo jv ka kk km kn ko krc ku kv kw ky la lb lez li lmo lo lrc lt lv mai mg mhr min mk ml mn mr mrj ms "
    "mt mwl my myv mzn nah nap nds ne new nl nn no oc or os pa pam pfl pl pms pnb ps pt qu rm ro ru rue sa sah sc scn "
    "sco sd sh si sk sl so sq sr su sv sw ta te tg th tk tl tr tt tyv ug uk ur uz vec vep vi vls vo wa war wuu xal xmf "
    "yi yo yue zh"
)
FASTTEXT_CODES = frozenset(_FASTTEXT_CODES.split())

#: The members of macrolanguages (ISO 639-3) that data sets mean by them and that CLDR does not list.
_MEMBERS = {"quy": "qu", "pbt": "ps"}

#: Norwegian without a further word is Bokmål.
_DOMINANT = {"nb": "no"}

#: Regions that are meant where a code has none. Of other languages the region is named like the language: ``fr_FR``.
_USUAL_REGIONS = {"en": "US", "sr": "RS", "zh": "CN"}

#: Maximum codes that an error lists.
_MAX_LISTED = 40


@dataclass(frozen=True)
class Language:
    """What is known of a language.

    Attributes:
        code: Its code, as it was given.
        tag: The same in BCP 47, as short as it can be: ``de`` for ``deu`` and ``ger``. None if no language has this
            code.
        script: The script of its text (ISO 15924): that of the code, or the usual one. None if it is not known.
    """

    code: str
    tag: str | None
    script: str | None

    @property
    def scripts(self) -> frozenset[str] | None:
        """The scripts of its letters (ISO 15924), of mixed text several: ``Hani Hira Kana`` of Japanese."""
        return None if self.script is None else frozenset(_MIXTURES.get(self.script, (self.script,)))

    @property
    def word_characters(self) -> int | None:
        """About how many characters a word has in text without spaces; None of other text.

        Chinese and Japanese words have 1.5 to 2, Thai, Khmer, Lao and Burmese ones 4 to 5, marks of vowels included.
        """
        if self.script in _CHINESE or self.script in ("Jpan", "Hrkt", "Hira", "Kana"):
            return 2
        return 5 if self.script in _UNDIVIDED else None

    @property
    def tokenizer(self) -> str:
        """The tokenizer of BLEU: ``zh``, ``ja-mecab``, ``ko-mecab`` or ``13a``, as sacrebleu's command line chooses.

        ``flores200`` for text without spaces that none of these divides. All Chinese languages have ``zh``; text in
        Latin letters has ``13a``.
        """
        if self.script in _CHINESE:
            return "zh"
        if self.script in _UNDIVIDED:
            return "flores200"
        language = (self.tag or "").partition("-")[0]
        return {"ja": "ja-mecab", "ko": "ko-mecab"}.get(language, "13a") if self.script != "Latn" else "13a"

    @property
    def fasttext(self) -> str | None:
        """The code of the language in fastText's model lid.176; None if that does not know it."""
        if self.tag is None:
            return None
        language = self.tag.partition("-")[0]
        usual = _FASTTEXT.get(f"{language}-{self.script}") or _FASTTEXT.get(language, language)
        exact = langcodes.standardize_tag(self.code.replace("_", "-")).partition("-")[0]  # not of its macrolanguage
        return next((code for code in (usual, exact) if code in FASTTEXT_CODES), None)


@cache
def language(code: str) -> Language:
    """Look up a language by a code of any kind: ``de``, ``deu``, ``ger``, ``de_DE``, ``deu_Latn``."""
    tag = short_tag(code)
    if tag is None:
        return Language(code, None, parse_code(code).script)
    parsed = langcodes.Language.get(tag, normalize=False)
    known = [tag, str(parsed.language), f"{parsed.language}-{parsed.territory}"]
    script = parsed.script
    if script is None and any(name in LIKELY_SUBTAGS for name in known):
        script = parsed.maximize().script
    return Language(code, tag, script)


def english_name(code: str) -> str:
    """What a language is called in English, with its script or region if the code has one: ``Portuguese (Brazil)``.

    The code itself if no language has it, or if the package ``language_data`` is not installed.
    """
    tag = short_tag(code)
    if tag is None or find_spec("language_data") is None:
        return code
    return langcodes.Language.get(tag, normalize=False).display_name()


def short_tag(code: str) -> str | None:
    """A code in BCP 47, of a macrolanguage for its usual member: ``zh`` for ``cmn``. None if no language has it."""
    parsed = _parse(code)
    if parsed is None or parsed.language in (None, "und", "mul", "mis", "zxx"):
        return None
    name = str(parsed.language)
    if "qaa" <= name <= "qtz" and len(name) == 3:  # for private use: no language
        return None
    try:
        parsed.to_alpha3()
    except LookupError:
        return None
    return _MEMBERS.get(name, name) + parsed.to_tag().removeprefix(name)


def _parse(code: str) -> langcodes.Language | None:
    """A code by ``langcodes``, of a macrolanguage for its usual member; None if no table knows it."""
    try:
        tag = langcodes.standardize_tag(code.replace("_", "-"), macro=True)
    except ValueError:
        return None
    parsed = langcodes.Language.get(tag, normalize=False)
    return parsed if parsed.is_valid() else None


def code_problem(code: str, unless: str = "") -> str | None:
    """What is wrong with a code, and what takes it nevertheless; None if a table knows it, or it is for private use."""
    if _parse(code):
        return None
    advice = f"did you mean {meant}?" if (meant := _meant_code(code)) else _CODE_ADVICE
    return f"{shown(code)} is not a language code{unless and f' ({unless} takes any)'}: {advice}"


def _meant_code(code: str) -> str | None:
    """The code that is meant by that of a country, ``ja`` by ``jp``, by a name, or by one with a wrong script."""
    first = re.split("[-_]", code)[0]
    if (usual := LIKELY_SUBTAGS.get(f"und-{first.upper()}")) is not None:
        return usual.partition("-")[0]
    if find_spec("language_data") is not None:
        with suppress(LookupError):
            return langcodes.find(re.sub("[-_]", " ", code)).to_tag()
    return first if _parse(first) else None


def known_script(code: str, rule: str) -> frozenset[str]:
    """The scripts of a language's letters, for a rule that needs them; the message names its option.

    Raises:
        ConfigError: The script is not known.
    """
    if (scripts := language(code).scripts) is not None:
        return scripts
    raise ConfigError(f"{rule} needs the script of {code}, which is not known: write it too, such as {code}_Latn")


def known_to_fasttext(code: str, rule: str) -> str:
    """The code of a language in fastText's model, for a rule that needs it.

    Raises:
        ConfigError: The model does not know the language.
    """
    if (name := language(code).fasttext) is not None:
        return name
    raise ConfigError(f"{rule}: fastText's model lid.176 cannot identify {code}: leave the rule out")


def is_divided(texts: Iterable[str]) -> bool:
    """Whether spaces divide text into the words of BLEU: not Chinese, Japanese, Korean, Thai …"""
    return _share(texts, _NOT_13A) <= 0.5


def is_chinese_or_japanese(texts: Iterable[str]) -> bool:
    """Whether most letters of text are Chinese characters or kana."""
    return _share(texts, frozenset(("Hani", "Bopo", "Hira", "Kana"))) > 0.5


def _share(texts: Iterable[str], scripts: frozenset[str]) -> float:
    """The share of the letters of a text's first lines that are of these scripts; 0 without letters."""
    return script_share("".join(islice(texts, _SAMPLE)), scripts, without=0.0)


def script_share(text: str, scripts: Collection[str], without: float = 1.0) -> float:
    """The share of the text's letters that are of these scripts (ISO 15924); ``without`` for a text without letters.

    Letters that several scripts share, such as the ー of Hiragana and Katakana, do not count.
    """
    if text.isascii() and "Latn" in scripts:
        return 1.0
    letters = [script for character in text if (script := script_of(character))]
    return sum(script in scripts for script in letters) / len(letters) if letters else without


@cache
def script_of(character: str) -> str | None:
    """The script of a letter (ISO 15924); None if it is no letter, or one of several scripts."""
    script = str(unicodedata.script(character)) if character.isalpha() else "Zyyy"
    return None if script in ("Zyyy", "Zinh") else script


class LanguageCode(NamedTuple):
    """A code in parts: the language as BCP 47 writes it (``zh`` for ``cmn``), script and region.

    ``de``, ``deu``, ``de_DE`` and ``deu_Latn`` are all German: a language of two or three letters, then perhaps a
    script of four and a region of two, with ``-`` or ``_`` between them.
    """

    language: str
    script: str | None
    region: str | None


def parse_code(code: str) -> LanguageCode:
    """Divide a code into its parts. Parts that are neither a script nor a region are left out.

    One for private use, ``x-name``, has no parts.
    """
    if _plain(code).startswith("x-"):
        return LanguageCode(_plain(code), None, None)
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
    name = meant.language
    usual = LanguageCode(name, language(name).script, _USUAL_REGIONS.get(name, name.upper()))
    agreeing = [code for code in codes if _agree(parse_code(code), meant)]
    complete = {
        code: LanguageCode(name, parsed.script or usual.script, parsed.region or usual.region)
        for code, parsed in zip(agreeing, map(parse_code, agreeing), strict=True)
    }
    matching = [code for code in agreeing if _agree(complete[code], meant)] or agreeing
    for choice in (
        [code for code in matching if _plain(code) == _plain(wanted)],
        [code for code in matching if parse_code(code) == meant],
        [code for code in matching if complete[code] == usual],
    ):
        if len(choice) == 1:
            return choice
    return matching


def divide_codes(both: str, codes: Sequence[str]) -> tuple[str, str]:
    """The two codes of a pair such as ``en-de``.

    A code may have a ``-`` too. The pair is divided where both sides mean one of ``codes``, or else any language; if
    nowhere, at the first ``-``.

    Raises:
        UserError: It is not two codes, or one of them is neither of ``codes`` nor of any language.
    """
    parts = both.split("-")
    cuts = [("-".join(parts[:cut]), "-".join(parts[cut:])) for cut in range(1, len(parts))]
    if not cuts or not all(parts):
        raise UserError(f"--langpair {shown(both)}: name two languages, such as en-de")
    known = [cut for cut in cuts if not any(map(code_problem, cut))]
    pair = next((cut for cut in cuts if all(matching_codes(code, codes) for code in cut)), (known or cuts)[0])
    for problem in (code_problem(code) for code in pair if not matching_codes(code, codes)):
        if problem is not None:
            raise UserError(f"--langpair {shown(both)}: {problem}")
    return pair


def find_code(wanted: str, codes: Sequence[str], where: str) -> str:
    """The code among ``codes`` that means the language ``wanted``.

    Raises:
        DataError: None does, or several do. The message names ``where``.
    """
    matching = matching_codes(wanted, codes)
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(sorted(matching))
        raise DataError(f"{where} has several texts in {wanted}: {names}; name one of these codes")
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
