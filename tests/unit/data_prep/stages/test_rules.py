"""The rules that drop pairs, each against examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.recipe.options import CleanOptions
from data_prep.stages.rules import RULES, numbers, script_share, scripts_of

GERMAN = "Ein Hund läuft über die Straße und bellt eine Katze an."
ENGLISH = "A dog runs across the street and barks at a cat."


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
        (("a b c d e", "a"), {"max_ratio": 4}, "length_ratio"),
        (("a b c d", "a"), {"max_ratio": 4}, None),
        (("Berlin", "Berlin"), {"drop_identical": True}, "identical"),
        (("Berlin", "Berlin"), {}, None),
        ((ENGLISH, "собака бежит по улице и лает"), {"min_script": 0.5}, "script"),
        ((ENGLISH, GERMAN), {"min_script": 1.0}, None),
        (("It costs 1,000.50 in 2014", "2014 kostet es 1.000,50"), {"drop_numbers": True}, None),
        (("It costs 1,000 in 2014", "2014 kostet es 1.001"), {"drop_numbers": True}, "numbers"),
        (("two of 3", "zwei"), {"drop_numbers": True}, "numbers"),
        ((ENGLISH, GERMAN), {"min_language": 0.5}, None),
        ((ENGLISH, ENGLISH), {"min_language": 0.5}, "language"),
        ((GERMAN, GERMAN), {"min_language": 0.5}, "language"),
    ],
)
def test_a_pair_is_dropped_by_the_rule_that_it_breaks(
    pair: tuple[str, str], options: dict[str, object], rule: str | None
) -> None:
    assert dropped_by(pair, **options) == rule


@pytest.mark.parametrize(
    ("language", "scripts"),
    [
        ("de", ("LATIN",)),
        ("ru", ("CYRILLIC",)),
        ("sr-Latn", ("LATIN",)),
        ("zho_Hans", ("CJK",)),
        ("ja", ("CJK", "HIRAGANA", "KATAKANA")),
    ],
)
def test_a_language_has_its_scripts(language: str, scripts: tuple[str, ...]) -> None:
    assert scripts_of(language) == scripts


def test_the_share_of_a_script_counts_letters_only() -> None:
    assert script_share("Straße 12, № 3!", ("LATIN",)) == 1.0
    assert script_share("12, 3!", ("CYRILLIC",)) == 1.0
    assert script_share("dog собака", ("LATIN",)) == pytest.approx(3 / 9)
    assert script_share("東京へ行くカナ", ("CJK", "HIRAGANA", "KATAKANA")) == 1.0


@given(st.text())
def test_rules_take_any_text(text: str) -> None:
    assert 0 <= script_share(text, ("LATIN",)) <= 1
    assert numbers(text) == numbers(f"{text} ")


@given(st.lists(st.integers(0, 10**7)))
def test_numbers_are_compared_in_any_order_and_grouping(values: list[int]) -> None:
    english = " and ".join(f"{value:,}" for value in values)
    german = " und ".join(f"{value:,}".replace(",", ".") for value in reversed(values))
    assert numbers(english) == numbers(german)
