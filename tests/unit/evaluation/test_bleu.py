from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.ter import TER

from dstransformer.errors import ConfigError, DataError
from dstransformer.evaluation import bleu as bleu_module
from dstransformer.evaluation.bleu import (
    bleu_tokenizer,
    compound_split_bleu,
    is_asian,
    score,
    score_translations,
    text_tokenizer,
    tokenizer_note,
)

REFERENCES = ["Zwei Männer sitzen vor einem Haus.", "Ein Hund läuft über die Wiese."]


def test_bpe_joins_pieces_in_lower_case_without_smoothing() -> None:
    pieces, joined = ["Ein Mann mit sa@@ f@@ ti@@ g-@@ grü@@ nem Ba@@ ll"], ["ein mann mit saftig-grünem ball"]
    found, chrf = score(pieces, joined, "bpe")
    assert found.value == pytest.approx(100.0)
    assert chrf.value == score(["Ein Mann mit saftig-grünem Ball"], joined)[1].value
    assert found.signature.startswith("nrefs:1|case:lc|eff:no|tok:bpe|smooth:none|version:")
    assert score(["ein mann mit ball"], ["ein mann im ball"], "bpe")[0].value == 0.0


def test_bleu_of_pieces_is_that_of_fairseq() -> None:
    """The figure is what the scorer of fairseq 0.12.2 (``libbleu``) prints of these pieces, ``@@ `` removed."""
    output = [
        "a man in a red shi@@ rt is load@@ ing co@@ tton onto a truck .",
        "two dogs play in the snow .",
        "the woman wear@@ s a blue dress and a hat",
        "children run across the street while it rains .",
    ]
    reference = [
        "a man in a red shirt lo@@ ads cotton onto a tr@@ uck .",
        "two dogs are playing in the snow .",
        "a woman wears a blue dress and a black ha@@ t .",
        "some children run over the street while it is raining .",
    ]
    assert score(output, reference, "bpe")[0].value == pytest.approx(53.89433689589692, rel=1e-12)


def test_signatures_say_how_scores_were_computed() -> None:
    bleu, chrf = score(REFERENCES, REFERENCES)
    assert (bleu.name, bleu.label) == ("bleu", "BLEU")
    assert bleu.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert (chrf.name, chrf.label) == ("chrf", "chrF2")
    assert chrf.signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
    own = compound_split_bleu(REFERENCES, REFERENCES, "de").signature
    assert own.startswith("nrefs:1|case:mixed|eff:no|tok:none|smooth:none|version:")
    assert own.endswith("|moses:de|quotes:plain|compounds:split")


def test_compounds_are_split_on_both_sides() -> None:
    translation, reference = ["a rich-text format is here."], ["a rich-text format was here."]
    # Eight tokens, "a rich ##AT##-##AT## text format is here .", of which "is" is wrong.
    value = compound_split_bleu(translation, reference, "en").value
    assert value == pytest.approx(100 * (7 / 8 * 5 / 7 * 3 / 6 * 2 / 5) ** 0.25)
    whole = score(translation, reference)[0].value
    assert value > whole


#: Texts, and by hand their tokens as the authors' script compares them: Moses' tokens with its escapes, plain quotation
#: marks, compounds split in three.
BY_HAND = [
    (
        "Er sagte: „Das E-Mail-Format ist gut“, und ging.",
        "Er sagte : &quot; Das E ##AT##-##AT## Mail ##AT##-##AT## Format ist gut &quot; , und ging .",
    ),
    (
        'Sie sagte: "Das Text-Format ist schlecht", und blieb.',
        "Sie sagte : &quot; Das Text ##AT##-##AT## Format ist schlecht &quot; , und blieb .",
    ),
    ("War’s das …? Von 5-10 Uhr » offen «.", "War &apos; s das ... ? Von 5 ##AT##-##AT## 10 Uhr &quot; offen &quot; ."),
    ("Wir haben (fast) 3,5 % mehr.", "Wir haben ( fast ) 3,5 % mehr ."),
]
BY_HAND_REFERENCES = [
    (
        'Er sagte: "Das E-Mail-Format ist sehr gut", und ging.',
        "Er sagte : &quot; Das E ##AT##-##AT## Mail ##AT##-##AT## Format ist sehr gut &quot; , und ging .",
    ),
    (
        "Sie sagte: „Das Textformat ist schlecht“, und blieb.",
        "Sie sagte : &quot; Das Textformat ist schlecht &quot; , und blieb .",
    ),
    ("War's das ...? Von 5-10 Uhr „offen“.", "War &apos; s das ... ? Von 5 ##AT##-##AT## 10 Uhr &quot; offen &quot; ."),
    ("Wir haben (fast) 3,5 % mehr!", "Wir haben ( fast ) 3,5 % mehr !"),
]


def bleu_of_tokens(translations: list[str], references: list[str]) -> float:
    """BLEU of space-separated tokens by Papineni et al. (2002), as ``multi-bleu.perl`` computes it."""
    hits, counts = [0] * 4, [0] * 4
    for translation, reference in zip(translations, references, strict=True):
        for n in range(1, 5):
            found, wanted = (
                Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
                for tokens in (translation.split(), reference.split())
            )
            hits[n - 1] += (found & wanted).total()
            counts[n - 1] += found.total()
    length, wanted_length = (sum(len(text.split()) for text in side) for side in (translations, references))
    brevity = min(1.0, math.exp(1 - wanted_length / length))
    return 100 * brevity * math.prod(hit / count for hit, count in zip(hits, counts, strict=True)) ** 0.25


def test_compound_split_bleu_equals_bleu_of_the_scripts_tokens() -> None:
    texts = [[text for text, _ in side] for side in (BY_HAND, BY_HAND_REFERENCES)]
    tokens = [[by_hand for _, by_hand in side] for side in (BY_HAND, BY_HAND_REFERENCES)]
    value = compound_split_bleu(*texts, "de").value
    assert value == pytest.approx(bleu_of_tokens(*tokens))
    plain = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(tokens[0], [tokens[1]])
    assert value == pytest.approx(plain.score)
    assert 70 < value < 95


@pytest.mark.parametrize("marks", ["„“", "“”", "‟”", "«»", "»«"])
def test_kinds_of_quotation_marks_do_not_matter(marks: str) -> None:
    typographic, plain = [f"Er rief: {marks[0]}Komm bitte her{marks[1]}."], ['Er rief: "Komm bitte her".']
    assert compound_split_bleu(plain, typographic, "de").value == pytest.approx(100.0)
    assert compound_split_bleu(typographic, plain, "de").value == pytest.approx(100.0)
    assert score(plain, typographic)[0].value < 60, "they matter to sacrebleu"


def test_abbreviations_depend_on_the_language() -> None:
    # "bzw." keeps its full stop in German, but not in English.
    texts = ["Hunde bzw. Katzen laufen sehr schnell"], ["Hunde bzw . Katzen laufen sehr schnell"]
    assert compound_split_bleu(*texts, "de").value < 100
    assert compound_split_bleu(*texts, "en").value == pytest.approx(100.0)


def test_different_numbers_of_sentences_are_refused() -> None:
    for scorer in (score, lambda a, b: compound_split_bleu(a, b, "de")):
        with pytest.raises(DataError, match="3 translations but 2 references"):
            scorer([*REFERENCES, "zu viel"], REFERENCES)
        with pytest.raises(DataError, match="no sentences"):
            scorer([], [])


def test_empty_translations_score_zero() -> None:
    assert score(["", ""], REFERENCES)[0].value == 0.0
    assert compound_split_bleu(["", ""], REFERENCES, "de").value == 0.0


#: Nearly perfect translations and their references.
TEXTS = {
    "zh": (
        ["我喜欢在公园散步。", "今天天气很好，我们吃饭吧。"],
        ["我喜欢在公园里散步。", "今天天气很好，我们去吃饭吧。"],
    ),
    "ja": (["犬が通りを走っています。", "男は本を読む。"], ["犬が通りを走っている。", "男は本を読んでいる。"]),
    "ko": (["개가 거리를 달린다.", "남자가 책을 읽는다."], ["개가 거리를 달립니다.", "남자가 책을 읽고 있다."]),
    "th": (["สุนัขวิ่งบนถนน", "ผู้ชายอ่านหนังสือ"], ["สุนัขกำลังวิ่งบนถนน", "ผู้ชายคนหนึ่งอ่านหนังสือ"]),
    "ar": (["كلب يركض في الشارع.", "رجل يقرأ كتابا."], ["كلب يركض في الشارع.", "رجل يقرأ كتابا جديدا."]),
    "de": (["Ein Hund läuft.", "Zwei Männer sitzen vor dem Haus."], ["Ein Hund läuft.", REFERENCES[0]]),
}


@pytest.mark.parametrize("code", TEXTS)
def test_the_score_of_a_language_is_that_of_sacrebleus_command_line(code: str, tmp_path: Path) -> None:
    translations, references = TEXTS[code]
    (tmp_path / "ref").write_text("\n".join(references) + "\n", encoding="utf-8")
    choice = ["--tokenize", "char"] if code == "th" else ["--language-pair", f"en-{code}"]
    command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "ref"), *choice, "--width", "6", "--score-only"]
    command += ["--metrics", "bleu", "chrf"]
    done = subprocess.run(command, input="\n".join(translations) + "\n", capture_output=True, text=True, check=True)
    tokenizer = bleu_tokenizer(code)
    found = score(translations, references, tokenizer)
    assert [one.value for one in found] == pytest.approx(json.loads(done.stdout), abs=1e-6)
    assert f"tok:{tokenizer}" in found[0].signature
    assert found[0].value > 20


@pytest.mark.parametrize(
    ("code", "tokenizer"), [("zho_Hans", "zh"), ("jpn", "ja-mecab"), ("tha", "char"), (None, "13a")]
)
def test_a_language_has_its_tokenizer_unless_another_is_chosen(code: str | None, tokenizer: str) -> None:
    assert bleu_tokenizer(code) == tokenizer
    assert bleu_tokenizer(code, "intl") == "intl"


def test_a_hint_names_no_option_that_no_command_has(caplog: pytest.LogCaptureFixture) -> None:
    lines = ["A dog runs ."] * 100
    score(lines, lines)
    assert caplog.messages == [
        "That's 100 lines that end in a tokenized period ('.')",
        "It looks like you forgot to detokenize your test data, which may hurt your score.",
    ]


def test_what_is_unusual_about_the_choice_is_said() -> None:
    assert str(tokenizer_note("th")).startswith("BLEU of th counts characters (char): the model of flores200")
    assert str(tokenizer_note("english")).startswith("'english' is not a language code: BLEU takes the tokenizer 13a")
    assert [tokenizer_note("de"), tokenizer_note("ja"), tokenizer_note("th", "char"), tokenizer_note(None)] == [
        None
    ] * 4


@pytest.mark.parametrize(("code", "choice", "usual"), [
    ("ja", "bpe", "ja-mecab"), ("jpn_Jpan", "13a", "ja-mecab"), ("zh", "intl", "zh"), ("ko", "none", "ko-mecab"),
    ("tha", "13a", "flores200"), ("ja", "zh", "ja-mecab"), ("de", "ja-mecab", "13a"), ("cmn_Latn", "zh", "13a"),
    ("ja", "ja-mecab", None), ("yue", "zh", None), ("ja", "char", None), ("th", "flores200", None), ("de", "bpe", None),
    ("ar", "intl", None), ("de", "none", None), ("xx", "bpe", None), (None, "bpe", None),
])  # fmt: skip
def test_a_tokenizer_that_does_not_fit_the_language_is_said(code: str | None, choice: str, usual: str | None) -> None:
    wanted = usual and f"--tokenize {choice} does not fit {code}: --tokenize auto takes {usual}"
    assert tokenizer_note(code, choice, "--tokenize ") == wanted


def test_a_tokenizer_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bleu_module, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"ja .*ja-mecab: .*pip install"):
        bleu_tokenizer("ja")
    with pytest.raises(ConfigError, match="--tokenize flores200"):
        bleu_tokenizer("de", "flores200", "--tokenize ")


@pytest.mark.parametrize("code", ["zh", "ja", "ko", "th"])
def test_text_of_an_unknown_language_is_not_guessed(code: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r"language .*not known"):
        text_tokenizer(TEXTS[code][1], "auto", "--tokenize ")
    assert text_tokenizer(TEXTS[code][1], "char", "--tokenize ") == "char"
    assert text_tokenizer(TEXTS["ar"][1], "auto", "--tokenize ") == "13a"
    assert text_tokenizer(TEXTS["ar"][1], "intl", "--tokenize ") == "intl"
    assert caplog.messages == []
    assert text_tokenizer(TEXTS[code][1], "bpe", "--tokenize ") == "bpe"
    assert caplog.messages == ["--tokenize bpe does not fit this text, whose words no spaces divide: choose another"]


def test_ter_divides_chinese_and_japanese_into_characters() -> None:
    translations, references = TEXTS["zh"]
    found = score_translations(translations, references, "zh", "zh").scores[-1]
    expected = TER(normalized=True, asian_support=True).corpus_score(translations, [references])
    assert found.value == pytest.approx(expected.score)
    assert found.value < 20 < score_translations(translations, references, "en").metrics["ter"]
    assert "asian:yes" in found.signature
    chinese, arabic = references, TEXTS["ar"][1]
    assert is_asian("zh", None, arabic)
    assert is_asian("char", "jpn", arabic)
    assert is_asian("char", None, chinese), "by the letters"
    assert is_asian("13a", "qqq", chinese)
    assert not is_asian("13a", "de", chinese)
    assert not is_asian("13a", None, arabic)
