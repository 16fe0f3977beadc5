"""What a look at the first sentences of a source finds."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from data_prep.sources.opening import Part
from data_prep.stages.read import look_at
from dstransformer.errors import DataError, UserError
from dstransformer.io import glance

#: Real text, where the machine has it.
MULTI30K = Path(os.environ.get("DST_SHARED_DATA", Path(__file__).parents[5] / "shared" / "data")) / "multi30k"

#: The parts of sentences, to be combined.
PARTS = {
    "en": (("The old man", "My young neighbour", "A tired teacher"), ("reads", "buys", "forgets", "is looking for"),
           ("the newspaper", "a red umbrella", "his keys"),
           ("in the garden.", "on the way to work.", "every evening.")),
    "de": (("Der alte Mann", "Mein junger Nachbar", "Ein müder Lehrer"), ("liest", "kauft", "vergisst", "sucht"),
           ("die Zeitung", "einen roten Regenschirm", "seine Schlüssel"),
           ("im Garten.", "auf dem Weg zur Arbeit.", "jeden Abend.")),
    "fr": (("Le vieil homme", "Mon jeune voisin", "Un professeur fatigué"), ("lit", "achète", "oublie", "cherche"),
           ("le journal", "un parapluie rouge", "ses clés"),
           ("dans le jardin.", "en allant au travail.", "chaque soir.")),
    "ja": (("老人は", "私の若い隣人は", "疲れた先生は"), ("庭で", "仕事に行く途中で", "毎晩"),
           ("新聞を", "赤い傘を", "鍵を"), ("読みます。", "買います。", "忘れます。", "探します。")),
    "ar": (("الرجل العجوز", "جاري الشاب", "معلم متعب"), ("يقرأ", "يشتري", "ينسى", "يبحث عن"),
           ("الجريدة", "مظلة حمراء", "مفاتيحه"), ("في الحديقة.", "في الطريق إلى العمل.", "كل مساء.")),
    "zh": (("老人", "我年轻的邻居", "疲倦的老师"), ("在花园里", "在上班的路上", "每天晚上"),
           ("看", "买", "忘记", "寻找"), ("报纸。", "一把红伞。", "他的钥匙。")),
}  # fmt: skip


def sentences(code: str) -> list[str]:
    """Sentences in a language."""
    return [("" if code in ("ja", "zh") else " ").join(words) for words in product(*PARTS[code])]


def look(src: list[str], tgt: list[str], codes: tuple[str, str]) -> list[str]:
    """What is found in a source of these pairs."""
    options: Any = SimpleNamespace(
        source="files", record=lambda: dict(zip(("src_lang", "tgt_lang"), codes, strict=True))
    )
    source: Any = SimpleNamespace()
    return look_at(Part("files", options, source), "files", pa.table({"src": src, "tgt": tgt}))


def look_languages(src: str, tgt: str, codes: tuple[str, str]) -> list[str]:
    """What is found in the sentences of two languages under two codes."""
    return look(sentences(src), sentences(tgt), codes)


@pytest.mark.parametrize(("text", "codes"), [
    (("en", "de"), ("eng", "deu_Latn")),
    (("en", "ja"), ("en", "jpn")),
    (("en", "zh"), ("en", "zho_Hans")),
    (("ar", "fr"), ("arb", "fra")),
    (("en", "de"), ("english", "xx")),
    (("en", "de"), ("en", "gsw")),
])  # fmt: skip
def test_right_text_causes_no_warning(text: tuple[str, str], codes: tuple[str, str]) -> None:
    assert look_languages(*text, codes) == []


@pytest.mark.parametrize(("text", "codes", "warning"), [
    (("de", "en"), ("eng", "deu"), "the sides of files may be swapped: by fastText"),
    (("ja", "en"), ("en", "ja"), "the sides of files may be swapped: 0% of the letters that should be en are of its"),
    (("en", "fr"), ("en", "de"), "a side of files may be in another language: by fastText 0% of the lines"),
    (("en", "de"), ("en", "ar"), "a side of files may be in another language: 0% of the letters that should be ar"),
    (("en", "zh"), ("en", "ja"), "a side of files may be in another language: by fastText"),
])  # fmt: skip
def test_swapped_and_foreign_sides_are_noticed(text: tuple[str, str], codes: tuple[str, str], warning: str) -> None:
    (found,) = look_languages(*text, codes)
    assert found.startswith(warning)


def test_text_that_fits_neither_language_is_refused() -> None:
    with pytest.raises(DataError, match=r"0% .*ru"):
        look_languages("en", "de", ("ru", "ja"))


@pytest.mark.parametrize(("first", "second", "code", "warning"), [
    ("ar", "ja", "ja", "50% of the lines that should be ja are not, by their script"),
    ("ja", "ar", "ar", "50% of the lines that should be ar are not, by their script"),
    ("de", "zh", "de", "50% of the lines that should be de are not, by their script"),
    ("de", "fr", "de", "by fastText 50% of the lines that should be de look like it, 50% like fr"),
    ("ja", "zh", "ja", "by fastText"),
    ("ar", "ja", "xx", "by fastText 50% of the lines that should be xx look like it, 50% like"),
])  # fmt: skip
def test_a_side_that_is_a_mixture_is_noticed(first: str, second: str, code: str, warning: str) -> None:
    mixed = [one for both in zip(sentences(first), sentences(second), strict=True) for one in both]
    for src, tgt, codes in ((sentences("en") * 2, mixed, ("en", code)), (mixed, sentences("en") * 2, (code, "en"))):
        (found,) = look(src, tgt, codes)
        assert found.startswith(f"a side of files may be partly in another language: {warning}")


def test_one_text_for_both_sides_is_noticed() -> None:
    assert look(sentences("en"), sentences("en"), ("en", "de")) == [
        "the sides of files are the same text: is one file given for both?"
    ]


def test_names_in_latin_letters_make_no_mixture() -> None:
    japanese = [f"{line} Excel {number}" for number, line in enumerate(sentences("ja"))]
    assert look(sentences("en"), japanese, ("en", "ja")) == []


def test_lines_with_two_foreign_scripts_are_a_mixture() -> None:
    both = [" ".join(pair) for pair in zip(sentences("ar"), sentences("ja"), strict=True)]
    (found,) = look(sentences("en"), both, ("en", "ar"))
    assert "may be partly in another language: 93% of the lines that should be ar are not" in found


@pytest.mark.parametrize(("change", "warning"), [
    (lambda line, _: f'"{line}"', "100% of the pairs of files are in quotes, as in a table: --unquote takes them off"),
    (lambda line, number: line if number % 9 else f'"""Oh"", {line}"', "11% of the pairs of files are in quotes"),
    (lambda line, number: line if number % 4 else f"{line} &#91;&apos;s&#93;",
     "25% of the pairs of files hold entities such as &#91;: --unescape html writes the characters"),
    (lambda line, number: line if number % 4 else f'"{line}"', None),
    (lambda line, _: f"{line} R&D; 3 < 4 & 5 ?a=1&copy=2 \"AT&T\"", None),
])  # fmt: skip
def test_text_that_a_table_or_a_page_has_changed_is_noticed(
    change: Callable[[str, int], str], warning: str | None
) -> None:
    src, tgt = ([change(line, number) for number, line in enumerate(sentences(code))] for code in ("en", "ja"))
    found = look(src, tgt, ("en", "ja"))
    assert len(found) == (warning is not None)
    assert "".join(found).startswith(warning or "")


@pytest.mark.skipif(not MULTI30K.exists(), reason=f"the text of Multi30k is not in {MULTI30K}")
def test_real_text_is_judged_rightly() -> None:
    english, german = (
        gzip.decompress((MULTI30K / f"train.{code}.gz").read_bytes()).decode().splitlines() for code in ("en", "de")
    )
    assert look(english, german, ("en", "de")) == []
    lower = [[line.lower() for line in side] for side in (english, german)]
    assert look(lower[0], lower[1], ("eng", "deu_Latn")) == []
    assert "the sides of files may be swapped" in str(look(german, english, ("en", "de")))
    assert "a side of files may be in another language" in str(look(english, german, ("en", "fr")))


def test_without_the_package_scripts_still_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise UserError("not installed")

    monkeypatch.setattr(glance, "load_detector", refuse)
    assert look_languages("de", "en", ("en", "de")) == []
    assert "may be swapped" in str(look_languages("ja", "en", ("en", "ja")))
