"""The rules that drop pairs, each against examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.recipe.options import CleanOptions
from data_prep.stages.rules import RULES, numbers
from dstransformer.errors import ConfigError
from dstransformer.io.languages import script_share

GERMAN = "Ein Hund läuft über die Straße und bellt eine Katze an."
ENGLISH = "A dog runs across the street and barks at a cat."


#: Messages, translations, and the rule that drops them: a key in a word of any script is one, an identifier has none.
KEYS = [
    ("_Add", "أ_ضف", None), ("_Close", "أغل_ق", None), ("_Save", "ש_מירה", None), ("&Save", "ا&حفظ", None),
    ("_Save", "\u200f_שמירה", None), ("_Edit", "แ_ก้ไข", None), ("_Service", "स_ेवा", None), ("E&xit", "Вы&ход", None),
    ("Auto_Include", "自動挿入(_I)", None), ("South_Georgia", "Südgeorgien", None), ("list_view", "Liste", None),
    ("ALPHA", "ألفا_ك", None), ("V&ST", "VST(&S)", None), ("Steps_:", "ال_خطوات:", None), ("R&D", "研究", None),
    ("_Add", "أضف", "accelerators"), ("Add", "أ_ضف", "accelerators"), ("Op_en", "Öffnen", "accelerators"),
    ("Stop", "停止(&T)", "accelerators"), ("_Save & quit", "Sichern & beenden", "accelerators"),
]  # fmt: skip


def dropped_by(pair: tuple[str, str], languages: tuple[str, str] = ("en", "de"), **options: object) -> str | None:
    """The first rule that drops a pair."""
    given = CleanOptions.model_validate(options)
    active = {rule.name: rule.build(given, *languages) for rule in RULES}
    return next((name for name, drops in active.items() if drops and drops(*pair)), None)


@pytest.mark.parametrize(
    ("pair", "options", "rule"),
    [
        (("", "leer"), {}, "empty"),
        (("a b c", "a b"), {"max_words": 2}, "too_long"),
        (("a b c", "a b"), {"max_words": 3}, None),
        (("a b c d e f g h i", "a"), {"max_ratio": 4}, "length_ratio"),
        (("a b c d e f g h", "a"), {"max_ratio": 4}, None),
        (("Berlin", "Berlin"), {"drop_identical": True}, "identical"),
        (("Berlin", "Berlin"), {}, None),
        ((ENGLISH, "собака бежит по улице и лает"), {"min_script": 0.5}, "script"),
        ((ENGLISH, GERMAN), {"min_script": 1.0}, None),
        (("It costs 1,000.50 in 2014", "2014 kostet es 1.000,50"), {"drop_numbers": True}, None),
        (("It costs 1,000 in 2014", "2014 kostet es 1.001"), {"drop_numbers": True}, "numbers"),
        (("two of 3", "zwei"), {"drop_numbers": True}, "numbers"),
        (("%s in %s 7", "%2$s 7 in %1$s"), {"drop_numbers": True, "drop_placeholders": True}, None),
        (("%s in <b>%s</b>", "%s: %s"), {"drop_placeholders": True}, "placeholders"),
        (("_File", "Datei"), {"drop_accelerators": True}, "accelerators"),
        (("_File", "&Datei"), {"drop_accelerators": True}, None),
        *[((message, translation), {"drop_accelerators": True}, rule) for message, translation, rule in KEYS],
        ((ENGLISH, GERMAN), {"min_language": 0.5}, None),
        (("_Apply", "<b>%s</b> Appliquer(_A)"), {"min_language": 0.5}, None),
        ((f"{ENGLISH} %s", f"<b>_%(name)s</b> {GERMAN}"), {"min_language": 0.5}, None),
        ((ENGLISH, ENGLISH), {"min_language": 0.5}, "language"),
        ((GERMAN, GERMAN), {"min_language": 0.5}, "language"),
    ],
)
def test_a_pair_is_dropped_by_the_rule_that_it_breaks(
    pair: tuple[str, str], options: dict[str, object], rule: str | None
) -> None:
    assert dropped_by(pair, **options) == rule


@pytest.mark.parametrize(("target", "limit", "rule"), [
    ("Linuxの設定", 3, None), ("Linux kernel 6.1の設定", 4, "too_long"), ("北京(首都)、天津(津)", 6, None),
    ("北京(首都)、天津(津)", 5, "too_long"), ("darkkhaki (#BDB76B)", 3, None),
])  # fmt: skip
def test_words_in_ascii_count_in_text_without_spaces(target: str, limit: int, rule: str | None) -> None:
    assert dropped_by(("a", target), ("en", "ja"), max_words=limit, max_ratio=100) == rule


@pytest.mark.parametrize(("codes", "target", "kept"), [
    (("ja", "jpn", "jpn_Jpan"), "犬が通りを走る。", True),
    (("ru", "rus", "rus_Cyrl"), "Собака бежит по улице.", True),
    (("zh", "zho", "yue", "zho_Hant"), "一隻狗在街上跑。", True),
    (("el", "ell", "gre"), "Ένας σκύλος τρέχει.", True),
    (("ba", "sah", "bak"), "Эт урам буйлап йүгерә.", True),
    (("ti", "tir"), "ከልቢ ኣብ ጎደና ይጎዪ።", True),
    (("dv", "div"), "އެ ކުއްތާ މަގު މަތީގައި ދުވަނީ", True),
    (("sr-Latn", "srp_Latn", "hr"), "Pas trči ulicom.", True),
    (("sr", "srp_Cyrl"), "Pas trči ulicom.", False),
    (("th", "ko", "deu_Latn"), "Собака бежит по улице.", False),
])  # fmt: skip
def test_a_language_is_known_by_any_of_its_codes(codes: tuple[str, ...], target: str, kept: bool) -> None:
    for code in codes:
        rule = dropped_by((ENGLISH, target), ("eng", code), min_script=0.5)
        assert rule == (None if kept else "script"), code


@pytest.mark.parametrize("codes", [("eng", "deu"), ("eng_Latn", "ger"), ("en-US", "de_AT")])
def test_languages_are_identified_by_any_of_their_codes(codes: tuple[str, str]) -> None:
    assert dropped_by((ENGLISH, GERMAN), codes, min_language=0.5) is None
    assert dropped_by((GERMAN, ENGLISH), codes, min_language=0.5) == "language"


@pytest.mark.parametrize(("codes", "options", "message"), [
    (("en", "xx"), {"min_script": 0.5}, "--min-script needs the script of xx, which is not known"),
    (("en", "lus"), {"min_script": 0.5}, "--min-script needs the script of lus, .* write it too, such as lus_Latn"),
    (("english", "de"), {"min_language": 0.5}, "lid.176 cannot identify english"),
    (("en", "ti"), {"min_language": 0.5}, "fastText's model lid.176 cannot identify ti: leave the rule out"),
])  # fmt: skip
def test_a_rule_that_needs_to_know_more_is_refused(
    codes: tuple[str, str], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        dropped_by((ENGLISH, GERMAN), codes, **options)


def test_the_share_of_a_script_counts_letters_only() -> None:
    assert script_share("Straße 12, № 3!", ("Latn",)) == 1.0
    assert script_share("12, 3!", ("Cyrl",)) == 1.0
    assert script_share("dog собака", ("Latn",)) == pytest.approx(3 / 9)
    assert script_share("東京へ行くカナ", ("Hani", "Hira", "Kana")) == 1.0


@given(st.text())
def test_rules_take_any_text(text: str) -> None:
    assert 0 <= script_share(text, ("Latn",)) <= 1
    assert numbers(text) == numbers(f"{text} ")


@given(st.lists(st.integers(0, 10**7)))
def test_numbers_are_compared_in_any_order_and_grouping(values: list[int]) -> None:
    english = " and ".join(f"{value:,}" for value in values)
    german = " und ".join(f"{value:,}".replace(",", ".") for value in reversed(values))
    assert numbers(english) == numbers(german)
