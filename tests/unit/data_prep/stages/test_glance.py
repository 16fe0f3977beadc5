"""What a look at the first sentences of a source finds."""

from __future__ import annotations

import gzip
import os
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from data_prep.sources.opening import Part
from data_prep.stages import glance
from data_prep.stages.glance import look_at
from dstransformer.errors import DataError, UserError

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


def part(src: str, tgt: str, codes: tuple[str, str]) -> Part:
    """A source with the sentences of two languages under two codes."""
    return source_of(sentences(src), sentences(tgt), codes)


def source_of(src: list[str], tgt: list[str], codes: tuple[str, str]) -> Part:
    """A source of these pairs."""
    sides = {"src": src, "tgt": tgt}
    options: Any = SimpleNamespace(
        source="files", record=lambda: dict(zip(("src_lang", "tgt_lang"), codes, strict=True))
    )
    source: Any = SimpleNamespace(splits={"train": lambda: iter([pa.table(sides)])})
    return Part("files", options, source)


@pytest.mark.parametrize(("text", "codes"), [
    (("en", "de"), ("eng", "deu_Latn")),
    (("en", "ja"), ("en", "jpn")),
    (("en", "zh"), ("en", "zho_Hans")),
    (("ar", "fr"), ("arb", "fra")),
    (("en", "de"), ("english", "xx")),
    (("en", "de"), ("en", "gsw")),
])  # fmt: skip
def test_right_text_causes_no_warning(text: tuple[str, str], codes: tuple[str, str]) -> None:
    assert look_at(part(*text, codes)) is None


@pytest.mark.parametrize(("text", "codes", "warning"), [
    (("de", "en"), ("eng", "deu"), "the sides of files may be swapped: by fastText"),
    (("ja", "en"), ("en", "ja"), "the sides of files may be swapped: 0% of the letters that should be en are of its"),
    (("en", "fr"), ("en", "de"), "a side of files may be in another language: by fastText 0% of the lines"),
    (("en", "de"), ("en", "ar"), "a side of files may be in another language: 0% of the letters that should be ar"),
    (("en", "zh"), ("en", "ja"), "a side of files may be in another language: by fastText"),
])  # fmt: skip
def test_swapped_and_foreign_sides_are_noticed(text: tuple[str, str], codes: tuple[str, str], warning: str) -> None:
    assert str(look_at(part(*text, codes))).startswith(f"warning: {warning}")


def test_text_that_fits_neither_language_is_refused() -> None:
    with pytest.raises(DataError, match="the text of files fits neither language: 0% of the letters that should be ru"):
        look_at(part("en", "de", ("ru", "ja")))


def test_the_whole_of_the_text_is_looked_at() -> None:
    src, tgt = (sentences("en") + sentences(code) * 40 for code in ("de", "en"))
    assert "may be swapped" in str(look_at(source_of(src, tgt, ("en", "de"))))


@pytest.mark.skipif(not MULTI30K.exists(), reason=f"the text of Multi30k is not in {MULTI30K}")
def test_real_text_is_judged_rightly() -> None:
    english, german = (
        gzip.decompress((MULTI30K / f"train.{code}.gz").read_bytes()).decode().splitlines() for code in ("en", "de")
    )
    assert look_at(source_of(english, german, ("en", "de"))) is None
    lower = [[line.lower() for line in side] for side in (english, german)]
    assert look_at(source_of(lower[0], lower[1], ("eng", "deu_Latn"))) is None
    assert "the sides of files may be swapped" in str(look_at(source_of(german, english, ("en", "de"))))
    assert "a side of files may be in another language" in str(look_at(source_of(english, german, ("en", "fr"))))


def test_without_the_package_scripts_still_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise UserError("not installed")

    monkeypatch.setattr(glance, "load_detector", refuse)
    assert look_at(part("de", "en", ("en", "de"))) is None
    assert "may be swapped" in str(look_at(part("ja", "en", ("en", "ja"))))
