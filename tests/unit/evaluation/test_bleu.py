from __future__ import annotations

import math
from collections import Counter

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.ter import TER

from dstransformer.errors import DataError
from dstransformer.evaluation.bleu import compound_split_bleu, score, ter

REFERENCES = ["Zwei Männer sitzen vor einem Haus.", "Ein Hund läuft über die Wiese."]


def test_a_perfect_translation_scores_a_hundred() -> None:
    bleu, chrf = score(REFERENCES, REFERENCES)
    assert bleu.value == pytest.approx(100.0)
    assert chrf.value == pytest.approx(100.0)
    assert compound_split_bleu(REFERENCES, REFERENCES, "de").value == pytest.approx(100.0)


def test_bleu_is_papinenis_formula() -> None:
    # Of six tokens, five unigrams, four bigrams, three trigrams and two four-grams are right; the lengths are equal.
    value = score(["a b c d e x"], ["a b c d e f"])[0].value
    assert value == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    # And with a brevity penalty.
    value = score(["a b c d e"], ["a b c d e f"])[0].value
    assert value == pytest.approx(100 * math.exp(1 - 6 / 5))


def test_bleu_is_cased_and_tokenized_by_13a() -> None:
    assert score(["ein hund läuft ."], ["Ein hund läuft ."])[0].value < 100
    assert score(["Ein Hund läuft ."], ["Ein Hund läuft."])[0].value == pytest.approx(100.0)


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


def test_ter_is_that_of_sacrebleu_and_divides_asian_text_if_asked() -> None:
    translations, references = ["我今天去了学校。", "猫在桌子上"], ["我昨天去了学校。", "猫在椅子上"]
    plain, asian = ter(translations, references), ter(translations, references, asian=True)
    theirs = TER(normalized=True, asian_support=True)
    assert asian.value == theirs.corpus_score(translations, [references]).score
    assert asian.signature == str(theirs.get_signature())
    assert asian.signature.startswith("nrefs:1|case:lc|tok:tercom|norm:yes|punct:yes|asian:yes|version:")
    assert asian.value == pytest.approx(100 * 2 / 13), "one of 8 characters, and one of 5"
    assert plain.value == 100.0, "each sentence is one word"
    assert "|norm:no|punct:yes|asian:no|" in plain.signature
    western = ter(["a cat sat"], ["a dog sat"])
    assert western.value == TER().corpus_score(["a cat sat"], [["a dog sat"]]).score == pytest.approx(100 / 3)
