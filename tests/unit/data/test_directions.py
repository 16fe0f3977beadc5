"""Directions of a model, and the tags that tell them apart."""

from __future__ import annotations

import pytest

from dstransformer.data.directions import Direction, Tags, choose_direction, common_language
from dstransformer.errors import UserError

DE, EN = Direction("en", "de", ">>deu<<"), Direction("de", "en", ">>eng<<")
BACK = Direction("en", "de", "<bt>")
PLAIN = Direction("en", "fr", None)


@pytest.mark.parametrize(("to", "found"), [
    (">>deu<<", DE), ("<bt>", BACK), ("en", EN), ("eng", EN), ("en_US", EN), ("fr", PLAIN),
])  # fmt: skip
def test_a_direction_is_named_by_its_language_or_its_tag(to: str, found: Direction) -> None:
    assert choose_direction([DE, EN, BACK, PLAIN], to) == found


def test_of_several_tags_into_a_language_none_is_guessed() -> None:
    with pytest.raises(UserError, match=r"--to 'deu': .*<bt>, >>deu<<"):
        choose_direction([BACK, EN, DE], "deu")
    plain = Direction("en", "de", None)
    assert choose_direction([BACK, EN, plain], "de") == plain


def test_an_unknown_language_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"--to .ru.: .*de, en; .*>>deu<<, >>eng<<$"):
        choose_direction([DE, EN], "ru")
    with pytest.raises(UserError, match="--to 'ru'"):
        choose_direction([PLAIN], "ru")


def test_sentences_get_the_chosen_tag_unless_they_have_one() -> None:
    begins, texts = Tags([DE, EN], "de").split(["A dog.", "", "  ", ">>eng<< Ein Hund.", " >>deu<<  Two."], 1)
    assert begins == [">>deu<< ", "", "", ">>eng<< ", ">>deu<< "]
    assert texts == ["A dog.", "", "  ", "Ein Hund.", " Two."]


def test_a_tag_that_is_missing_or_unknown_is_refused() -> None:
    tags = Tags([DE, EN])
    assert tags.split([">>deu<< A dog.", ""], 1) == ([">>deu<< ", ""], ["A dog.", ""])
    with pytest.raises(UserError, match=r"sentence 8 .*>>deu<<, >>eng"):
        tags.split([">>deu<< A dog.", "A dog."], 7)
    for chosen in (tags, Tags([DE, EN], "de")):
        with pytest.raises(UserError, match="'>>fra<<'"):
            chosen.split([">>fra<< A dog."], 1)


def test_a_direction_without_tag_takes_sentences_as_they_are() -> None:
    assert Tags([DE, PLAIN]).split(["A dog."], 1) == ([""], ["A dog."])
    assert Tags([DE, PLAIN], "fr").split(["A dog."], 1) == ([""], ["A dog."])


def test_several_languages_of_a_side_have_the_code_of_several() -> None:
    assert common_language(["en", "en"]) == "en"
    assert common_language(["en", "de"]) == "mul"
