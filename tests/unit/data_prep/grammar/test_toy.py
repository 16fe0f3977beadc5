"""The embedded corpus: the sentences that the grammar draws, and the interface to them."""

import hashlib
import re

import pytest

from data_prep.grammar import lexicon
from data_prep.grammar.grammar import (
    GRAMMAR_REVISION,
    Pair,
    SentenceSampler,
    draw_distinct,
    generate_pairs,
    realise,
    toy_splits,
)
from data_prep.grammar.phrases import Chooser
from dstransformer.errors import UserError

DRAWS = 30_000


@pytest.fixture(scope="module")
def drawn() -> list[tuple[str, str]]:
    sampler = SentenceSampler(Chooser(20_17))
    return [realise(sampler.sentence())[:2] for _ in range(DRAWS)]


def test_every_source_has_one_target(drawn):
    targets: dict[str, str] = {}
    for source, target in drawn:
        assert targets.setdefault(source, target) == target


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


def test_links_cover_every_word() -> None:
    """Only function words without a counterpart have no sure link, and these have a possible one."""
    pairs = generate_pairs(2_000, seed=9, aligned=True)
    assert [pair[:2] for pair in pairs] == [pair[:2] for pair in generate_pairs(2_000, seed=9)]
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


def test_lengths():
    lengths = [len(source.split()) for source, *_ in generate_pairs(5_000, seed=3)]
    assert min(lengths) >= 4
    assert max(lengths) <= 25
    assert 9 <= sum(lengths) / len(lengths) <= 11


@pytest.mark.parametrize(("seed", "sha256"), [
    (1, "186e86958ce8a876a58cdc64af926297bba35456e3a2fad420e4f4a7b59c8881"),
    (2017, "b6d1cdf10efde9400f95f815f5acdc048f8fc050332ce396aeab1b09f2aac084"),
])  # fmt: skip
def test_the_pairs_and_their_links_are_those_of_the_revision(seed: int, sha256: str) -> None:
    drawn = generate_pairs(3_000, seed, aligned=True)
    text = "".join(f"{src}\t{tgt}\t{links.sure}\t{links.possible}\n" for src, tgt, links in drawn)
    found = hashlib.sha256(text.encode()).hexdigest()
    assert (GRAMMAR_REVISION, found) == (1, sha256), "raise GRAMMAR_REVISION when the sentences change"


@pytest.mark.slow
@pytest.mark.extended
def test_a_hundred_thousand_distinct_pairs():
    pairs = generate_pairs(104_000, seed=2)
    assert len({source for source, *_ in pairs}) == 104_000


def test_splits_share_no_source():
    splits = toy_splits(2_000, seed=4, validation=300, test=200)
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 2_000, "validation": 300, "test": 200}
    sources = {source for pairs in splits.values() for source, *_ in pairs}
    assert len(sources) == 2_500


def test_held_out_sets_do_not_depend_on_the_training_size():
    small, large = (toy_splits(count, seed=4, validation=30, test=20) for count in (100, 400))
    assert (small["validation"], small["test"]) == (large["validation"], large["test"])
    assert small["train"] == large["train"][:100]


@pytest.mark.parametrize(("sizes", "name"), [((0, 5, 5), "training"), ((5, 0, 5), "validation"), ((5, 5, -3), "test")])
def test_an_empty_split_is_refused(sizes, name):
    count, validation, test = sizes
    with pytest.raises(UserError, match=f"toy {name} set needs at least 1"):
        toy_splits(count, seed=1, validation=validation, test=test)


def test_an_exhausted_grammar_is_reported():
    sampler = Chooser(1)
    with pytest.raises(UserError, match="no more than about 6 distinct sentences, not 7"):
        draw_distinct(lambda: Pair(str(sampler.between(1, 6)), ""), 7)
