"""Augmentation: changed text for the same pairs, determined by seed, epoch, update and pair."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.corpora import TEXT, small_tokenizer, train_model, write_corpus
from support.data.loading import build_loader, take

from dstransformer.config import CaseChange, Modifier, Typos, load_config
from dstransformer.config.schema import OtherModifier
from dstransformer.data import UNK_ID, Corpus, Split, Tokenizer
from dstransformer.data.augment import (
    Augmentation,
    TextPart,
    describe_augmentation,
    lower,
    make_noise,
    mistype,
    title,
    upper,
    without_end_marks,
)
from dstransformer.data.loader import Update
from dstransformer.data.plan import Budget, LengthSums, Position
from dstransformer.data.reader import Pairs
from dstransformer.data.subwords import BpeDropout
from dstransformer.errors import ConfigError

BUDGET = Budget(src_tokens=400, tgt_tokens=400, micro_batches=4)
UPPER = CaseChange(modifier="upper", probability=1.0)
NOISE = OtherModifier(modifier="noise", probability=1.0)
ALL = [
    CaseChange(modifier="upper", probability=0.2),
    CaseChange(modifier="title", probability=0.2),
    CaseChange(modifier="lower", probability=0.2, source_only=True),
    OtherModifier(modifier="remove_end_punct", probability=0.3),
    Typos(modifier="typos", probability=0.3, rate=0.1),
    OtherModifier(modifier="noise", probability=0.2),
]


def encode(texts: list[str], tokenizer: Tokenizer | None = None) -> tuple[np.ndarray, np.ndarray]:
    rows = (tokenizer or small_tokenizer()).encode(texts)
    ids = [token for row in rows for token in row]
    return np.array(ids, dtype=np.int32), np.array([len(row) for row in rows], dtype=np.int32)


def build(
    *modifiers: Modifier,
    seed: int = 1,
    max_pieces: int = 500,
    tokenizer: Tokenizer | None = None,
    parts: Sequence[TextPart] = (TextPart(10**6, "en", "de"),),
) -> Augmentation:
    return Augmentation(tokenizer or small_tokenizer(), modifiers, seed, parts, max_pieces)


def texts(pairs: Pairs, tokenizer: Tokenizer | None = None) -> tuple[list[str], list[str]]:
    rows = ([row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])] for ids, lengths in pairs.sides)
    src, tgt = ((tokenizer or small_tokenizer()).decode(side) for side in rows)
    return src, tgt


def modify(augmentation: Augmentation, src: list[str], tgt: list[str]) -> tuple[list[str], list[str]]:
    rows = np.arange(len(src), dtype=np.int64)
    return texts(augmentation.modify(Pairs(*encode(src), *encode(tgt)), rows, Position()))


SRC, TGT = [TEXT[0], TEXT[2]] * 50, [TEXT[1], TEXT[3]] * 50


def test_each_modifier_changes_the_sides_it_is_for() -> None:
    src, tgt = modify(build(UPPER), SRC, TGT)
    assert (src[0], tgt[0]) == (TEXT[0].upper(), TEXT[1].upper())
    src, tgt = modify(build(CaseChange(modifier="lower", probability=1.0, source_only=True)), SRC, TGT)
    assert (src[0], tgt) == (TEXT[0].lower(), TGT)
    src, tgt = modify(build(CaseChange(modifier="title", probability=1.0)), SRC, TGT)
    assert src[0] == "The Quick Brown Fox Jumps Over The Lazy Dog."
    assert tgt[0] == "Zwölf Boxkämpfer Jagen Viktor Quer Über Den Großen Sylter Deich."
    src, tgt = modify(build(OtherModifier(modifier="remove_end_punct", probability=1.0)), SRC, TGT)
    assert (src[0], tgt[0]) == (TEXT[0][:-1], TEXT[1][:-1])
    src, tgt = modify(build(Typos(modifier="typos", probability=1.0, rate=0.2)), SRC, TGT)
    assert tgt == TGT
    assert all(one != other for one, other in zip(src, SRC, strict=True))
    src, tgt = modify(build(NOISE), SRC, TGT)
    for one, other, begin, translation in zip(src, tgt, SRC, TGT, strict=True):
        noise = one.removeprefix(begin)
        assert noise.startswith(" ")
        assert other == translation + noise
    assert len(set(src)) > 40, "every pair has noise of its own"


def test_pairs_are_chosen_with_the_given_probability_and_others_keep_their_pieces() -> None:
    pairs = Pairs(*encode(SRC * 20), *encode(TGT * 20))
    after = build(CaseChange(modifier="upper", probability=0.2)).modify(pairs, np.arange(2000), Position())
    src, tgt = texts(after)
    changed = [text.isupper() for text in src]
    assert np.mean(changed) == pytest.approx(0.2, abs=0.03)
    assert [text.isupper() for text in tgt] == changed
    rows = [np.split(ids, np.cumsum(lengths)[:-1]) for ids, lengths in (pairs.sides[0], after.sides[0])]
    for before, now, is_changed in zip(*rows, changed, strict=True):
        assert is_changed != np.array_equal(before, now)


def test_changes_depend_on_seed_epoch_update_and_pair_only() -> None:
    pairs = Pairs(*encode(SRC), *encode(TGT))
    rows = np.arange(100)
    positions = [Position(), Position(epoch=1), Position(update=1), Position(window=1)]
    found = [
        build(*ALL, seed=seed).modify(pairs, rows, place).src_ids.tobytes() for seed in (1, 2) for place in positions
    ]
    assert len(set(found)) == len(found)
    assert found == [
        build(*ALL, seed=seed).modify(pairs, rows, place).src_ids.tobytes() for seed in (1, 2) for place in positions
    ]
    order = np.random.default_rng(1).permutation(100)
    src, tgt = texts(build(*ALL).modify(pairs, rows, Position()))
    shuffled = Pairs(*encode([SRC[row] for row in order]), *encode([TGT[row] for row in order]))
    again = texts(build(*ALL).modify(shuffled, order, Position()))
    assert again == ([src[row] for row in order], [tgt[row] for row in order])


def test_letters_change_case_as_in_the_language_of_their_part() -> None:
    parts = (TextPart(1, "en", "de"), TextPart(0, "en", "fr"), TextPart(2, "tr", "en"))
    pairs = Pairs(*encode(["in"] * 3), *encode(["in"] * 3))
    changed = texts(build(UPPER, parts=parts).modify(pairs, np.array([2, 0, 1]), Position()))
    assert changed == (["İN", "IN", "İN"], ["IN"] * 3)


def test_random_numbers_stay_the_same() -> None:
    """A run that resumes with a later version of this program goes on with the same updates."""
    assert mistype("Two men are talking in front of a small house.", 0.2, Random("1 0 0 0")) == (
        "Too nen aer ttlaking inn rfnt of a smalll ohues."
    )
    assert make_noise(Random("1 0 0 1")) == "⇖↩"


def test_symbols_that_a_user_defined_stay_whole() -> None:
    tokenizer = Tokenizer(train_model(user_defined_symbols=["▁<bt>", "[num]"], vocab_size=344))
    sentence = "<bt> Two men are talking in front of [num] small houses."
    pairs = Pairs(*encode([sentence] * 50, tokenizer), *encode([TEXT[3]] * 50, tokenizer))
    typos = Typos(modifier="typos", probability=1.0, rate=1.0)
    for modifiers in (
        [UPPER],
        [CaseChange(modifier="title", probability=1.0)],
        [typos],
        [NOISE],
        [typos, UPPER, NOISE],
    ):
        after = build(*modifiers, tokenizer=tokenizer).modify(pairs, np.arange(50), Position())
        tag, number = (tokenizer.symbols[symbol] for symbol in ("▁<bt>", "[num]"))
        begins = np.cumsum(after.src_lengths) - after.src_lengths
        assert (after.src_ids[begins] == tag).all()
        assert (after.src_ids == number).sum() == 50
        assert len(after.src_ids) != len(pairs.src_ids)


def test_pairs_that_cannot_be_changed_keep_their_pieces() -> None:
    ids, lengths = encode(SRC[:2])
    unknown = ids.copy()
    unknown[1] = UNK_ID
    kept = build(UPPER).modify(Pairs(unknown, lengths, ids, lengths), np.arange(2), Position())
    assert np.array_equal(kept.src_ids[: lengths[0]], unknown[: lengths[0]])
    assert np.array_equal(kept.tgt_ids[: lengths[0]], ids[: lengths[0]]), "both sides or none"
    assert len(kept.src_ids) > len(ids), "the other pair is changed"
    gaps = np.array([0, *lengths], dtype=np.int32)
    empty = build(*ALL).modify(Pairs(ids, gaps, ids, gaps), np.arange(3), Position())
    assert empty.src_lengths[0] == empty.tgt_lengths[0] == 0
    longest = int(lengths.max())
    short = build(UPPER, max_pieces=longest).modify(Pairs(ids, lengths, ids, lengths), np.arange(2), Position())
    assert short.src_lengths.max() <= longest
    nothing = Pairs(ids[:0], lengths[:0], ids[:0], lengths[:0])
    assert build(UPPER).modify(nothing, np.arange(0), Position()).src_ids.size == 0
    no_bytes = Tokenizer(train_model(byte_fallback=False, vocab_size=90))
    pairs = Pairs(*encode(SRC, no_bytes), *encode(TGT, no_bytes))
    after = build(NOISE, tokenizer=no_bytes).modify(pairs, np.arange(100), Position())
    assert UNK_ID not in after.src_ids


def test_case_follows_the_language() -> None:
    assert upper("istanbul ıslak", "tr") == "İSTANBUL ISLAK"
    assert lower("İSTANBUL ISLAK", "tr-TR") == "istanbul ıslak"
    assert upper("istanbul", "en") == "ISTANBUL"
    assert upper("Straße", "de") == "STRASSE"
    assert title("(don't) “stop” NASA 3rd", "en") == "(Don't) “Stop” Nasa 3rd"
    assert title("中文 текст", "zh") == "中文 Текст"


@pytest.mark.parametrize(("src", "tgt", "wanted"), [
    ("Yes!", "是！", ("Yes", "是")),
    ("Wait...", "Warte .", ("Wait", "Warte")),
    ("Yes.", "Ja!", ("Yes.", "Ja!")),
    ("Yes", "Ja.", ("Yes", "Ja.")),
    (".", ".", ("", "")),
])  # fmt: skip
def test_marks_of_the_same_kind_are_removed(src: str, tgt: str, wanted: tuple[str, str]) -> None:
    assert without_end_marks(src, tgt) == wanted


@given(text=st.text(max_size=60), seed=st.integers(0, 9))
def test_typos_change_letters_only(text: str, seed: int) -> None:
    assert mistype(text, 1e-12, Random(seed)) == text
    after = mistype(text, 1.0, Random(seed))
    assert [sign for sign in after if not sign.isalpha()] == [sign for sign in text if not sign.isalpha()]


def test_letters_are_mistyped_at_the_given_rate() -> None:
    letters = "abcdefghij" * 2000
    kept = 0
    for place in range(0, len(letters), 10):
        kept += mistype(letters[place : place + 10], 0.05, Random(place)) == letters[place : place + 10]
    assert kept / 2000 == pytest.approx(0.95**10, abs=0.03)
    assert 0.9 < len(mistype(letters, 1.0, Random(1))) / len(letters) < 1.1, "as many are doubled as left out"


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    ids = small_tokenizer().encode(TEXT * 12)
    corpus = write_corpus(tmp_path_factory.mktemp("augment") / "corpus", list(zip(ids, ids[::-1], strict=True)))
    return Corpus.open(corpus).split("train")


def load(split: Split, rank: int = 0, world_size: int = 1, start: Position | None = None) -> list[Update]:
    dropout = BpeDropout(small_tokenizer(), 0.1, 1, None)
    loader = build_loader(split, BUDGET, rank=rank, world_size=world_size, subwords=dropout, augmentation=build(*ALL))
    assert loader.samples
    return take(loader, 12, start)


def test_all_layouts_and_resumed_runs_compute_the_same(split: Split) -> None:
    alone = load(split)
    two = [load(split, rank, 2) for rank in range(2)]
    for whole, *shares in zip(alone, *two, strict=True):
        dealt = [batch for pair in zip(*(share.batches for share in shares), strict=True) for batch in pair]
        for one, other in zip(whole.batches, dealt, strict=True):
            assert one.src.tolist() == other.src.tolist()
            assert one.tgt_out.tolist() == other.tgt_out.tolist()
        parts = [[getattr(share.sums, name) for share in shares] for name in LengthSums.__annotations__]
        assert [sum(part) for part in parts] == [getattr(whole.sums, name) for name in LengthSums.__annotations__]
    resumed = load(split, start=alone[7].position)
    for one, other in zip(alone[7:], resumed, strict=False):
        assert [batch.src.tolist() for batch in one.batches] == [batch.src.tolist() for batch in other.batches]


def test_the_configuration_is_checked() -> None:
    given = "[{modifier: upper, probability: 0.05}, {modifier: typos, probability: 0.1, rate: 0.02}]"
    modifiers = load_config("base", [f"training.augment={given}"]).training.augment
    assert describe_augmentation(modifiers) == "upper 0.05, typos 0.1 (rate 0.02)"
    assert load_config("base").training.augment == []
    for wrong, message in [
        ("[{modifier: uper, probability: 0.1}]", "'upper', 'lower', 'title'"),
        ("[{modifier: upper, probability: 0}]", "must be more than 0"),
        ("[{modifier: upper, probability: 1.5}]", "must be 1.0 or less"),
        ("[{modifier: typos, probability: 0.1}]", "missing key 'training.augment.0.typos.rate'"),
        ("[{modifier: noise, probability: 0.1, rate: 0.1}]", "unknown key 'training.augment.0.noise.rate'"),
        ("[{probability: 0.1}]", "modifier"),
        ("{upper: 0.1}", "write a list"),
    ]:
        with pytest.raises(ConfigError, match=r"^--set: training|^--set: (unknown|missing) key") as caught:
            load_config("base", [f"training.augment={wrong}"])
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
