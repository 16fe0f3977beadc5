"""The rules that drop training pairs. To add one, write its function and list it in ``RULES``.

A rule sees one pair in Unicode form NFKC. Rules are tried in the order of ``RULES``; options are in ``CleanOptions``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from data_prep.recipe.options import CleanOptions
from data_prep.stages.marks import accelerators, may_have_key, placeholders, without_marks
from dstransformer.io.glance import load_detector
from dstransformer.io.languages import known_script, known_to_fasttext, language, script_share

#: Tells whether a pair is dropped.
Drops = Callable[[str, str], bool]

#: Makes the function of a rule from the options and the codes of both languages; None if the rule is off.
Build = Callable[[CleanOptions, str, str], Drops | None]

#: In text without spaces, what begins with a letter or digit of ASCII, up to another character or a space.
_ASCII_WORD = re.compile("[0-9A-Za-z][!-~]*")

#: The place of an argument, as in gettext's ``%2$s``.
_ARGUMENT = re.compile(r"%\d+\$")

#: Bytes of letters that fastText can judge. Of English messages with fewer, at 0.5 a quarter are taken for others.
_MIN_BYTES = 30

_NUMBER = re.compile(r"\d+(?:[.,'\u2019\u00a0\u202f]\d+)*")


@dataclass(frozen=True)
class Rule:
    """A rule for single pairs.

    Attributes:
        name: Its name in reports.
        build: Makes its function.
        advice: What to do if it drops every pair.
    """

    name: str
    build: Build
    advice: str


def _asked_for(option: str, drops: Drops) -> Build:
    """The ``build`` of a rule that an option turns on, and that looks at nothing but the pair."""
    return lambda options, *_: drops if getattr(options, option) else None


def _word_counter(code: str) -> Callable[[str], int]:
    """Counts the words of a text; of a language without spaces, it divides its characters by those of a usual word.

    What such a text has in ASCII, as names and commands, is a word up to the next space or other character.
    """
    characters = language(code).word_characters
    if characters is None:
        return lambda text: text.count(" ") + 1

    def count(text: str) -> int:
        rest, ascii_words = _ASCII_WORD.subn("", text)
        return ascii_words + -(-(len(rest) - rest.count(" ")) // characters)

    return count


def _too_long(options: CleanOptions, src_lang: str, tgt_lang: str) -> Drops:
    limit, src_words, tgt_words = options.max_words, _word_counter(src_lang), _word_counter(tgt_lang)
    return lambda src, tgt: src_words(src) > limit or tgt_words(tgt) > limit


def _too_short(options: CleanOptions, src_lang: str, tgt_lang: str) -> Drops | None:
    if options.min_words is None:
        return None
    limit, src_words, tgt_words = options.min_words, _word_counter(src_lang), _word_counter(tgt_lang)
    return lambda src, tgt: src_words(src) < limit or tgt_words(tgt) < limit


def _length_ratio(options: CleanOptions, src_lang: str, tgt_lang: str) -> Drops:
    limit, src_words, tgt_words = options.max_ratio, _word_counter(src_lang), _word_counter(tgt_lang)

    def drops(src: str, tgt: str) -> bool:
        one, other = src_words(src), tgt_words(tgt)
        # And one, because texts of a few words differ more: "Blocksatz" is "Align text to a block".
        return max(one, other) > limit * (min(one, other) + 1)

    return drops


def _script(options: CleanOptions, src_lang: str, tgt_lang: str) -> Drops | None:
    share = options.min_script
    if not share:
        return None
    src_scripts, tgt_scripts = (known_script(code, "--min-script") for code in (src_lang, tgt_lang))

    def drops(src: str, tgt: str) -> bool:
        return script_share(src, src_scripts) < share or script_share(tgt, tgt_scripts) < share

    return drops


def _accelerator_is_lost(src: str, tgt: str) -> bool:
    return any(accelerators(a) and not may_have_key(b) for a, b in ((src, tgt), (tgt, src)))


def _language(options: CleanOptions, src_lang: str, tgt_lang: str) -> Drops | None:
    threshold = options.min_language
    if not threshold:
        return None
    src, tgt = (known_to_fasttext(code, "--min-language") for code in (src_lang, tgt_lang))
    detect = load_detector()

    def differs(text: str, code: str) -> bool:
        words = without_marks(text)
        return len("".join(filter(str.isalpha, words)).encode()) >= _MIN_BYTES and detect(words, code) < threshold

    if src_lang == tgt_lang:  # text of one language, each sentence of which is a pair with itself
        return lambda source, _: differs(source, src)
    return lambda source, target: differs(source, src) or differs(target, tgt)


_CHECK_LINES = "check that line n of one file translates line n of the other"

RULES = (
    Rule("empty", lambda *_: lambda src, tgt: not (src and tgt), "check that the files hold text"),
    Rule("too_long", _too_long, "raise --max-words"),
    Rule("too_short", _too_short, "lower --min-words"),
    Rule("length_ratio", _length_ratio, f"{_CHECK_LINES}, or raise --max-ratio"),
    Rule(
        "identical",
        _asked_for("drop_identical", lambda src, tgt: src == tgt),
        "check that the sides are two languages",
    ),
    Rule("script", _script, "check the language codes, or lower --min-script"),
    Rule("numbers", _asked_for("drop_numbers", lambda src, tgt: numbers(src) != numbers(tgt)), _CHECK_LINES),
    Rule(
        "placeholders",
        _asked_for("drop_placeholders", lambda src, tgt: placeholders(src) != placeholders(tgt)),
        _CHECK_LINES,
    ),
    Rule("accelerators", _asked_for("drop_accelerators", _accelerator_is_lost), _CHECK_LINES),
    Rule("language", _language, "check the language codes, or lower --min-language"),
)


def check_rules(options: CleanOptions, languages: Iterable[tuple[str, str]]) -> None:
    """Check that all rules know what they need of the languages of source and target.

    Raises:
        ConfigError: A rule needs the script of a language, or a package, that there is not; or cannot identify it.
    """
    for both in languages:
        for rule in RULES:
            rule.build(options, *both)


def numbers(text: str) -> list[str]:
    """The numbers of a text in order of their digits; ``1,000.5``, ``1.000,5`` and ``1 000,5`` are the same.

    The place of an argument is none: ``%2$s`` is ``%s``.
    """
    if not any(character.isdigit() for character in text):
        return []
    return sorted("".join(filter(str.isdigit, number)) for number in _NUMBER.findall(_ARGUMENT.sub("%", text)))
