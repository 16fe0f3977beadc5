"""A system that writes exactly the references scores 100, whatever their language and their punctuation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.data.prep import build

from dstransformer.data import Corpus
from dstransformer.evaluation.bleu import bleu_tokenizer, score

REFERENCES = {
    "zh": "你好，世界！（这是“测试”：１００％；对吗？）——《红楼梦》……",
    "ja": "彼は「東京ﾀﾜｰ」へ行った。（ｱｲｽは３００円！）〜㈱日本、①番",
    "th": "น้ำแข็งทำจากน้ำ และคำว่า “จำนำ” ราคา ๑๐๐ บาท",
    "lo": "ນ້ຳກ້ອນ ແລະ ຄຳວ່າ ‘ທຳ’ ຫຼາຍຄົນ ໜຶ່ງ",
    "vi": "Tiếng Việt: “Đường phố Hà Nội rộng lắm…” – ậ ẫ ử ợ ½",
    "fr": "« L’œuvre de 10 ºC », dit-il : ça coûte 3 €\u00a0! №\u202f5",
    "de": "„Größe“ ist 5 m², die ﬁnale Fassung … kostet ¼ €",
    "ar": "قال: «ﷺ محمد» ﻻ شيء، ٪١٠٠ ـ نعم؟ بِسْمِ اللّٰهِ",
    "fa": "می‌خواهم «کتاب‌ها» را ببینم؛ ۱۲۳ ﷼",
    "he": "שָׁלוֹם, „עולם״ – ﬡ ב׳ג״ד",
    "hi": "क़लम और ज़मीन — “हिन्दी” १२३।",
    "ru": "«Ёлка» — № 5… ½ й",
    "ko": "“안녕하세요” ㈜한국 ① ﾡ 가격은 ₩１０００",
    "el": "«Ἀρχή» · ΐ; ᾳ Ω",
    "tr": "İstanbul’da “ığdır” ½",
    "ro": "„Științe” și țară ﬂuture",
    "cs": "„Příliš žluťoučký kůň“ ½ ĳ",
    "nl": "ĳsland, ‘IJ’ en ŉ ﬀ",
    "hy": "«Բարև» ﬔ և։",
    "ta": "“வணக்கம்” கொ ௧௨௩",
    "my": "“မင်္ဂလာပါ” ကို ၁၂၃။",
    "km": "«សួស្ដី» ១២៣។",
    "am": "«ሰላም» ፩፪፫።",
    "ka": "„გამარჯობა“ ℃ Å",
    "en": "“Ligatures: ﬁ ﬂ ﬀ” – 2³ = 8, ™ © ½ ⅓ ﹣ ｡ 🏴\U000e0067\U000e0062\U000e007f ❤\ufe0f",
}


@pytest.mark.parametrize("vocabulary", ["--joint", "--no-joint"])
def test_a_perfect_system_scores_100_in_every_language(tmp_path: Path, vocabulary: str) -> None:
    """Two thirds of the references have characters that are new to the model."""
    corpus = build_corpus(tmp_path, list(REFERENCES.values()), vocabulary)
    assert not any("cannot write" in warning for warning in corpus.manifest.warnings)
    assert corpus.tokenizer.is_joint == (vocabulary == "--joint")
    held_out = corpus.split("validation")
    assert held_out.tgt_texts() == list(REFERENCES.values())
    _, _, ids, lengths = held_out.gather(np.arange(len(held_out)))
    outputs = corpus.tokenizer.decode([row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])])
    for code, output in zip(REFERENCES, outputs, strict=True):
        bleu, chrf = score([f"{output} " * 4], [f"{REFERENCES[code]} " * 4], bleu_tokenizer(code))
        assert (bleu.value, chrf.value) == pytest.approx((100, 100)), code
    (source,) = corpus.tokenizer.src.encode(["（ﬁ）！"])
    assert corpus.tokenizer.src.decode([source]) == ["(fi)!"], "what a model reads is folded"


@pytest.mark.parametrize(("reference", "options", "message"), [
    ("你好，世界！", ["--normalise-target", "nfkc"], "as '你好，世界！' as '你好,世界!': leave out --normalise-target"),
    ("gro\u0308ße", [], r"as 'gro\u0308\xdfe' as 'gr\xf6\xdfe': write the references in Unicode form NFC, "),
    ("ស្រី\u200bស្អាត", [], r"\u200b\u179f\u17d2\u17a2\u17b6\u178f' as"),
])  # fmt: skip
def test_what_a_model_cannot_write_is_said(tmp_path: Path, reference: str, options: list[str], message: str) -> None:
    *_, warning = build_corpus(tmp_path, [reference, "a\u00a0b\u2000 ", "c"], *options).manifest.warnings
    assert warning.startswith("a model cannot write 33.3% of the target sentences of validation as they are, ")
    assert message in warning


def build_corpus(folder: Path, references: list[str], *more: str) -> Corpus:
    """A corpus with these references as its validation set."""
    training = [f"{text} {n}" for n in range(9) for text in list(REFERENCES.values())[::3]]
    options = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--vocab-size", "700", *more]
    for name, lines in (("", training), ("valid-", references)):
        for side, text in (("src", [f"{name}line {line}" for line in lines]), ("tgt", lines)):
            path = folder / f"{name}{side}"
            path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
            options += [f"--{name}{side}", str(path)]
    assert build(*options, "--out", folder / "corpus") == 0
    return Corpus.open(folder / "corpus")
