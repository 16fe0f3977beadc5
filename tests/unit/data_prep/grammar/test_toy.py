"""The embedded corpus: the sentences that the grammar draws, and the interface to them."""

import hashlib
import re

import pytest

from data_prep.grammar import german, lexicon
from data_prep.grammar.features import Number, Tense
from data_prep.grammar.grammar import (
    GRAMMAR_REVISION,
    SentenceSampler,
    draw_distinct,
    generate_aligned_pairs,
    generate_pairs,
    realise,
    toy_splits,
)
from data_prep.grammar.phrases import Chooser
from dstransformer.errors import UserError

SINGULAR, PLURAL = Number.SINGULAR, Number.PLURAL
DRAWS = 30_000


@pytest.mark.parametrize(
    ("value", "word"),
    [
        *((1, "ein"), (7, "sieben"), (12, "zwölf"), (16, "sechzehn"), (17, "siebzehn"), (20, "zwanzig")),
        *((21, "einundzwanzig"), (30, "dreißig"), (66, "sechsundsechzig"), (99, "neunundneunzig")),
    ],
)
def test_number_words(value, word):
    assert german.number_word(value) == word


@pytest.mark.parametrize(
    ("entry", "forms"),
    [
        ("arbeiten", "arbeite arbeitet arbeiten arbeitete arbeiteten gearbeitet"),
        ("kaufen", "kaufe kauft kaufen kaufte kauften gekauft"),
        ("be|suchen", "suche sucht suchen suchte suchten gesucht"),
        ("besuchen", "besuche besucht besuchen besuchte besuchten besucht"),
        ("reparieren", "repariere repariert reparieren reparierte reparierten repariert"),
        ("sich erinnern", "erinnere erinnert erinnern erinnerte erinnerten erinnert"),
        ("lesen liest las gelesen", "lese liest lesen las lasen gelesen"),
        ("wissen weiß wusste gewusst weiß", "weiß weiß wissen wusste wussten gewusst"),
        ("sein ist war gewesen bin", "bin ist sind war waren gewesen"),
    ],
)
def test_conjugation(entry, forms):
    parsed = german.parse_verb(entry)
    persons = ((1, SINGULAR), (3, SINGULAR), (3, PLURAL))
    present = [parsed.finite(Tense.PRESENT, *person) for person in persons]
    past = [parsed.finite(Tense.PAST, *person) for person in persons[1:]]
    assert " ".join([*present, *past, parsed.participle]) == forms


@pytest.fixture(scope="module")
def drawn() -> list[tuple[str, str]]:
    sampler = SentenceSampler(Chooser(20_17))
    return [realise(sampler.sentence()) for _ in range(DRAWS)]


def test_every_source_has_one_target(drawn):
    targets: dict[str, str] = {}
    for source, target in drawn:
        assert targets.setdefault(source, target) == target


def test_sources_rarely_repeat(drawn):
    assert len({source for source, _ in drawn}) > 0.97 * DRAWS


def test_spelling(drawn):
    lower_case_nouns = {form.lower() for n in lexicon.NOUNS for form in (n.german.singular, n.german.plural)}
    lower_case_nouns -= {"junge", "jungen", "weine"}  # also forms of an adjective and of a verb
    for source, target in drawn:
        for side in (source, target):
            assert side[0].isupper()
            assert side[-1] in ".?"
            assert not re.search(r" [.,?]|  |,,|,[.?]|[^,.?\w\s'-]", side), side
        assert not lower_case_nouns.intersection(re.findall(r"\w+", target)[1:])
    for _, target in drawn:
        for conjunction in (" weil ", " dass ", " obwohl ", " ob ", " bevor "):
            assert conjunction not in target or f",{conjunction}" in target


PHENOMENA = {  # a pattern on the German side, and the smallest share of sentences that must match it
    "because": (r", weil |^Weil ", 0.05),
    "although": (r", obwohl |^Obwohl ", 0.04),
    "if, when": (r", wenn |^Wenn ", 0.02),
    "when, past": (r", als |^Als ", 0.01),
    "that": (r", dass ", 0.03),
    "whether": (r", ob ", 0.01),
    "relative clause": (r", (in |an |auf |von |mit |über )?(der|die|das|den|dem|denen|dessen|deren) ", 0.03),
    "purpose": (r", um .*zu", 0.02),
    "separable, split": (r" (an|auf|zu|ein|aus|ab|weg|mit)(,|\.|\?)", 0.05),
    "separable, infinitive with zu": (r" (an|auf|zu|ein|aus|ab|weg|mit)zu\w+", 0.01),
    "modal": (r"\b([Kk](a|o)nn|[Mm](u|ü)ss|[Ww](i|o)ll|[Ss]oll|[Dd](a|ü)rf)", 0.07),
    "future": (r"\b[Ww](ird|erden|erde)\b", 0.07),
    "perfect": (r"\b([Hh](at|aben|abe)|[Ii]st|[Ss]ind|[Bb]in)\b.*\w+(t|en)\b", 0.1),
    "nicht": (r"\bnicht\b", 0.06),
    "kein": (r"\b[Kk]ein", 0.01),
    "numbers": (r"\b([Zz]wei|[Dd]rei|[Vv]ier|[Ff]ünf|[Ss]echs|[Ss]ieben|[Aa]cht|[Nn]eun)", 0.05),
    "compound numbers": (r"und(zwan|drei|vier|fünf|sech|sieb|acht|neun)z?ig", 0.015),
    "question": (r"\?$", 0.1),
    "request": (r"^Bitte ", 0.04),
    "contraction": (r"\b([Ii]m|[Ii]ns|[Aa]m|[Zz]um|[Vv]om)\b", 0.08),
    "genitive": (r"\w (des|meines|seines|Ihres|ihres|dieses) \w+", 0.015),
    "reflexive": (r"\b(sich|mich|uns)\b", 0.02),
    "comparison": (r"\w+er als |so \w+ wie ", 0.01),
    "weather": (r"\bes (regne|schnei)|(regnet|schneit)e? es", 0.005),
}  # fmt: skip


@pytest.mark.parametrize("phenomenon", PHENOMENA)
def test_every_phenomenon_occurs(drawn, phenomenon):
    mark, least = PHENOMENA[phenomenon]
    share = sum(bool(re.search(mark, target)) for _, target in drawn) / DRAWS
    assert share >= least


def test_every_noun_adjective_and_verb_occurs(drawn):
    words = {word.lower() for source, _ in drawn for word in re.findall(r"[\w-]+", source)}
    expected = {n.english.singular for n in lexicon.NOUNS} | {a.english for a in lexicon.ADJECTIVES}
    expected |= {v.english.base for v in lexicon.ALL_VERBS} - {"be"}
    assert expected <= words


def test_links_cover_every_word() -> None:
    """Only function words without a counterpart have no sure link, and these have a possible one."""
    pairs = generate_aligned_pairs(2_000, seed=9)
    assert [pair[:2] for pair in pairs] == generate_pairs(2_000, seed=9)
    alone: tuple[set[str], set[str]] = set(), set()
    for english, german_sentence, (sure, possible) in pairs:
        assert not set(sure) & set(possible)
        for side, text in enumerate((english, german_sentence)):
            words = text.split()
            surely, linked = {link[side] for link in sure}, {link[side] for link in (*sure, *possible)}
            assert linked == set(range(len(words)))
            alone[side].update(word.lower().strip(".,?") for number, word in enumerate(words) if number not in surely)
    assert alone[0] <= {"do", "does", "did", "to", "of", "the", "am", "is", "are", "was", "were"}
    assert alone[1] <= {"sie", "sich", "uns", "mich", "dem", "an"}


def test_generation_is_deterministic_and_prefixes_agree():
    assert generate_pairs(300, seed=5) == generate_pairs(300, seed=5)
    assert generate_pairs(100, seed=5) == generate_pairs(300, seed=5)[:100]
    assert generate_pairs(100, seed=5) != generate_pairs(100, seed=6)


def test_generation_is_the_same_on_every_platform():
    assert generate_pairs(3, seed=1)[1:] == [
        ("The boy has read the poem today.", "Der Junge hat das Gedicht heute gelesen."),
        (
            "I hoped that the brother sat under the expensive bed yesterday.",
            "Ich hoffte, dass der Bruder gestern unter dem teuren Bett saß.",
        ),
    ]


def test_lengths():
    lengths = [len(source.split()) for source, _ in generate_pairs(5_000, seed=3)]
    assert min(lengths) >= 4
    assert max(lengths) <= 25
    assert 9 <= sum(lengths) / len(lengths) <= 11


@pytest.mark.parametrize(
    ("seed", "sha256"),
    [
        (1, "d51a6aace9439355456234742d0075da169d5164ee0c943663267351dd10b3d1"),
        (2017, "314771a209e76f54fbed036775dec2f3ac1e2a9c947256ab21fa29eef03ab279"),
    ],
)
def test_the_pairs_are_those_of_the_revision(seed: int, sha256: str) -> None:
    text = "".join(f"{source}\t{target}\n" for source, target in generate_pairs(3_000, seed))
    found = hashlib.sha256(text.encode()).hexdigest()
    assert (GRAMMAR_REVISION, found) == (1, sha256), "raise GRAMMAR_REVISION when the sentences change"


@pytest.mark.slow
@pytest.mark.extended
def test_a_hundred_thousand_distinct_pairs():
    pairs = generate_pairs(104_000, seed=2)
    assert len({source for source, _ in pairs}) == 104_000


def test_splits_share_no_source():
    splits = toy_splits(2_000, seed=4, validation=300, test=200)
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 2_000, "validation": 300, "test": 200}
    sources = {source for pairs in splits.values() for source, _ in pairs}
    assert len(sources) == 2_500


def test_held_out_sets_do_not_depend_on_the_training_size():
    small, large = (toy_splits(count, seed=4, validation=30, test=20) for count in (100, 400))
    assert (small["validation"], small["test"]) == (large["validation"], large["test"])
    assert small["train"] == large["train"][:100]


@pytest.mark.parametrize("count", [0, -3])
def test_a_count_below_one_is_refused(count):
    with pytest.raises(UserError, match=f"at least 1 sentence pair, not {count}"):
        generate_pairs(count, seed=1)


@pytest.mark.parametrize(("sizes", "name"), [((0, 5, 5), "training"), ((5, 0, 5), "validation"), ((5, 5, -1), "test")])
def test_an_empty_split_is_refused(sizes, name):
    count, validation, test = sizes
    with pytest.raises(UserError, match=f"toy {name} set needs at least 1"):
        toy_splits(count, seed=1, validation=validation, test=test)


def test_an_exhausted_grammar_is_reported():
    sampler = Chooser(1)
    with pytest.raises(UserError, match="no more than about 6 distinct sentences, not 7"):
        draw_distinct(lambda: (str(sampler.between(1, 6)), ""), 7)
