"""Language codes of different kinds, compared."""

from __future__ import annotations

import pytest

from dstransformer.errors import DataError
from dstransformer.io.language_codes import LanguageCode, divide_codes, find_code, matching_codes, parse_code

FLORES = ["arb_Arab", "arb_Latn", "deu_Latn", "eng_Latn", "fra_Latn", "nob_Latn", "srp_Cyrl", "zho_Hans", "zho_Hant"]
NTREX = ["deu", "eng", "eng-GB", "fra", "fra-CA", "por", "por-BR", "srp-Cyrl", "srp-Latn", "zho-CN", "zho-TW"]
WMT24PP = ["ar_EG", "ar_SA", "de_DE", "fr_CA", "fr_FR", "pt_BR", "pt_PT", "zh_CN", "zh_TW"]


@pytest.mark.parametrize(("code", "parts"), [
    ("de", ("de", None, None)),
    ("DE", ("de", None, None)),
    ("deu_Latn", ("de", "Latn", None)),
    ("pt-BR", ("pt", None, "BR")),
    ("zh", ("zh", None, None)),
    ("zh_TW", ("zh", "Hant", "TW")),
    ("zho-CN", ("zh", "Hans", "CN")),
    ("sr_latn_RS", ("sr", "Latn", "RS")),
    ("xyz", ("xyz", None, None)),
])  # fmt: skip
def test_codes_have_parts(code: str, parts: tuple[str, str | None, str | None]) -> None:
    assert parse_code(code) == LanguageCode(*parts)


@pytest.mark.parametrize(("wanted", "codes", "found"), [
    ("de", FLORES, "deu_Latn"),
    ("zh", FLORES, "zho_Hans"),
    ("zh-TW", FLORES, "zho_Hant"),
    ("zh_Hant", NTREX, "zho-TW"),
    ("ar", FLORES, "arb_Arab"),
    ("no", FLORES, "nob_Latn"),
    ("en", NTREX, "eng"),
    ("en-GB", NTREX, "eng-GB"),
    ("fr", NTREX, "fra"),
    ("pt-br", NTREX, "por-BR"),
    ("sr", NTREX, "srp-Cyrl"),
    ("fr", WMT24PP, "fr_FR"),
    ("fra", WMT24PP, "fr_FR"),
    ("zh", WMT24PP, "zh_CN"),
    ("pt", WMT24PP, "pt_PT"),
    ("ar-SA", WMT24PP, "ar_SA"),
    ("zh-Hant", ["zh", "zh_TW"], "zh_TW"),
    ("zh-Hans", ["zh", "zh_TW"], "zh"),
    ("pt-BR", ["pt", "por_Latn_BR"], "por_Latn_BR"),
])  # fmt: skip
def test_the_code_of_a_set_is_found(wanted: str, codes: list[str], found: str) -> None:
    assert find_code(wanted, codes, "a set") == found


@pytest.mark.parametrize(("both", "codes", "divided"), [
    ("en-de", FLORES, ("en", "de")),
    ("zh-Hans-en", FLORES, ("zh-Hans", "en")),
    ("en-zh-TW", WMT24PP, ("en", "zh-TW")),
])  # fmt: skip
def test_a_pair_is_divided_where_both_sides_are_known(both: str, codes: list[str], divided: tuple[str, str]) -> None:
    assert divide_codes(both, codes) == divided


def test_a_code_that_means_several_texts_or_none_is_refused() -> None:
    assert matching_codes("ar", WMT24PP) == ["ar_EG", "ar_SA"]
    with pytest.raises(DataError, match="a set has several texts in ar: ar_EG, ar_SA; name one of these codes"):
        find_code("ar", WMT24PP, "a set")
    with pytest.raises(DataError, match="a set has no text in ru; it has ar_EG, ar_SA, de_DE, fr_CA"):
        find_code("ru", WMT24PP, "a set")
    with pytest.raises(DataError, match="and 60 more"):
        find_code("ru", [f"a{number:02d}" for number in range(100)], "a set")
