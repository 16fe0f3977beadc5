"""BPE dropout: new pieces for the same sentences, determined by seed, epoch, update and micro-batch."""

from __future__ import annotations

from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import sentencepiece
from support.data.corpora import TEXT, small_tokenizer, train_model, write_corpus

from dstransformer.data import BOS_ID, EOS_ID, UNK_ID, Corpus, Split, Tokenizer
from dstransformer.data.budget import Budget
from dstransformer.data.loader import Position, Update, UpdateLoader
from dstransformer.data.plan import LengthSums
from dstransformer.data.subwords import BpeDropout, Pairs

BUDGET = Budget(src_tokens=400, tgt_tokens=400, micro_batches=4)
SENTENCES = [text + " " + "Zwei Männer unterhalten sich."[: 5 + place % 20] for place, text in enumerate(TEXT * 8)]


def encode(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    rows = small_tokenizer().encode(texts)
    return np.concatenate(rows).astype(np.int32), np.array([len(row) for row in rows], dtype=np.int32)


def pairs(texts: list[str]) -> Pairs:
    return *encode(texts), *encode(texts[::-1])


def rows(ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    return [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])]


def build(probability: float = 0.1, seed: int = 1, max_pieces: int | None = None) -> BpeDropout:
    return BpeDropout(small_tokenizer(), probability, seed, max_pieces)


def test_pieces_change_but_the_text_does_not() -> None:
    before = pairs(SENTENCES)
    after = build().sample(before, 0, 0, 0)
    for side in (slice(0, 2), slice(2, 4)):
        old, new = (rows(*both[side]) for both in (before, after))
        assert small_tokenizer().decode(new) == small_tokenizer().decode(old)
        assert old != new
        assert sum(map(len, new)) > sum(map(len, old))


def test_pieces_depend_on_seed_epoch_update_and_micro_batch() -> None:
    places = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    found = [build(seed=seed).sample(pairs(SENTENCES), *place) for seed in (1, 2) for place in places]
    again = [build(seed=seed).sample(pairs(SENTENCES), *place) for seed in (1, 2) for place in places]
    for one, two in zip(found, again, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert len({one[0].tobytes() for one in found}) == len(found)
    both = build().sample((*encode(SENTENCES), *encode(SENTENCES)), 0, 0, 0)
    assert rows(*both[:2]) != rows(*both[2:]), "the two sides differ"


def test_without_dropout_pieces_are_those_of_sentencepiece() -> None:
    tokenizer, dropout = small_tokenizer(), build()
    for text in [*TEXT, "Zwölf quirlige Boxer the of over Männer", "a", "  übermäßig  "]:
        for word in text.split():
            stored = tuple(tokenizer.encode([word])[0])
            assert dropout._segment_anew(stored, lambda _: False)[0] == stored


def test_each_merge_is_dropped_with_the_given_probability() -> None:
    """A piece of two characters takes a single merge."""
    tokenizer = small_tokenizer()
    words = (text for text in tokenizer.pieces(range(tokenizer.vocab_size)) if len(text) == 2 and text.isalpha())
    word = next(words)
    merged = tokenizer.encode([word])[0][1:]
    assert tokenizer.pieces(merged) == [word]
    trials = 20_000
    ids, lengths = np.array(merged * trials, dtype=np.int32), np.ones(trials, dtype=np.int32)
    for probability in (0.1, 0.5):
        sampled = rows(*build(probability).sample((ids, lengths, ids, lengths), 0, 0, 0)[:2])
        assert sum(row == merged for row in sampled) / trials == pytest.approx(1 - probability, abs=0.015)


def test_sentences_grow_as_much_as_with_sentencepiece_sampling() -> None:
    tokenizer = small_tokenizer()
    texts = TEXT * 300
    ours = build(0.2).sample((*encode(texts), *encode(texts)), 0, 0, 0)[1].sum()
    theirs = sentencepiece.SentencePieceProcessor(model_proto=train_model()).encode(
        texts, enable_sampling=True, alpha=0.2, nbest_size=-1
    )
    assert ours == pytest.approx(sum(map(len, theirs)), rel=0.02)
    assert ours > 1.1 * sum(map(len, tokenizer.encode(texts)))


def test_all_merges_are_dropped_at_a_probability_near_one() -> None:
    ids, lengths = encode(["Zwei Männer"])
    sampled = build(0.999_999).sample((ids, lengths, ids, lengths), 0, 0, 0)
    assert sampled[1].tolist() == [len("▁Zwei▁Männer")]


def test_sentences_that_would_grow_too_long_and_byte_pieces_are_kept() -> None:
    before = encode(SENTENCES)
    longest = int(before[1].max())
    after = build(0.5, max_pieces=longest).sample((*before, *before), 0, 0, 0)
    old, new = rows(*before), rows(*after[:2])
    assert max(map(len, new)) <= longest
    assert any(a == b for a, b in zip(old, new, strict=True))
    assert any(a != b for a, b in zip(old, new, strict=True))
    foreign = encode(["🦊 中文"])
    ids = np.array([*foreign[0], UNK_ID], dtype=np.int32)
    unknown = (ids, np.array([len(ids)], dtype=np.int32))
    assert rows(*build(0.9).sample((*unknown, *before), 0, 0, 0)[:2]) == [ids.tolist()]


def test_symbols_that_a_user_defined_stay_whole() -> None:
    model = train_model(user_defined_symbols=["[NUM]", "<2de>"], vocab_size=344)
    tokenizer = Tokenizer(model)
    texts = ["<2de> Zwei Männer unterhalten sich [NUM] vor [NUM]x Haus."] * 50
    stored = tokenizer.encode(texts)
    ids, lengths = np.concatenate(stored).astype(np.int32), np.array([len(row) for row in stored], dtype=np.int32)
    sampled = rows(*BpeDropout(tokenizer, 0.3, 1, None).sample((ids, lengths, ids, lengths), 0, 0, 0)[:2])
    symbols = [tokenizer.pieces([token])[0] for row in sampled for token in row]
    assert symbols.count("[NUM]") == 100
    assert symbols.count("<2de>") == 50
    assert sampled != stored
    never = BpeDropout(tokenizer, 1e-12, 1, None).sample((ids, lengths, ids, lengths), 0, 0, 0)
    assert rows(*never[:2]) == stored


def test_words_too_long_to_be_remembered_are_sampled_alike() -> None:
    text = "".join(SENTENCES).replace(" ", "").replace("▁", "")
    ids, lengths = encode([text[:400]] * 300)
    dropout = build(0.1)
    _, grown, _, _ = dropout.sample((ids, lengths, ids[:0], lengths * 0), 0, 0, 0)
    assert dropout._segment.cache_info().currsize == 0
    theirs = sentencepiece.SentencePieceProcessor(model_proto=train_model()).encode(
        [text[:400]] * 300, enable_sampling=True, alpha=0.1, nbest_size=-1
    )
    assert grown.sum() == pytest.approx(sum(map(len, theirs)), rel=0.02)
    assert grown.sum() > 1.05 * lengths.sum()


def test_empty_sentences_stay_empty() -> None:
    ids, lengths = encode(["Zwei Männer"])
    gaps = np.array([0, *lengths, 0], dtype=np.int32)
    sampled = build().sample((ids, gaps, ids[:0], gaps * 0), 0, 0, 0)
    assert sampled[1].tolist()[::2] == [0, 0]
    assert sampled[3].tolist() == [0, 0, 0]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    ids = small_tokenizer().encode(SENTENCES)
    corpus = write_corpus(tmp_path_factory.mktemp("dropout") / "corpus", list(zip(ids, ids[::-1], strict=True)))
    return Corpus.open(corpus).split("train")


def load(split: Split, dropout: BpeDropout | None, rank: int = 0, world_size: int = 1) -> list[Update]:
    options = {"seed": 1, "rank": rank, "world_size": world_size, "prefetch": 2, "pin_memory": False}
    loader = UpdateLoader(split, BUDGET, subwords=dropout, **options)  # type: ignore[arg-type]
    assert loader.samples == (dropout is not None)
    with closing(loader.iter_updates(Position())) as updates:
        return list(islice(updates, 6))


def test_all_layouts_compute_the_same_pieces_and_lengths(split: Split) -> None:
    alone = load(split, build())
    assert [update.following for update in alone] == [update.following for update in load(split, None)]
    two = [load(split, build(), rank, 2) for rank in range(2)]
    for whole, *shares in zip(alone, *two, strict=True):
        dealt = [batch for pair in zip(*(share.batches for share in shares), strict=True) for batch in pair]
        for one, other in zip(whole.batches, dealt, strict=True):
            assert one.src.tolist() == other.src.tolist()
            assert one.tgt_out.tolist() == other.tgt_out.tolist()
            assert {one.tgt_in[0].item(), one.tgt_out[-1].item()} == {BOS_ID, EOS_ID}
        packings = [(batch.src_packing.lengths, batch.tgt_packing.lengths) for batch in whole.batches]
        sides = [np.concatenate([lengths[side].numpy() for lengths in packings]) for side in range(2)]
        assert whole.sums == LengthSums.of(*sides)
        parts = [[getattr(share.sums, name) for share in shares] for name in LengthSums.__annotations__]
        assert [sum(part) for part in parts] == [getattr(whole.sums, name) for name in LengthSums.__annotations__]


def test_every_epoch_has_different_pieces(split: Split) -> None:
    loader = UpdateLoader(split, BUDGET, seed=1, rank=0, world_size=1, prefetch=2, pin_memory=False, subwords=build())
    epoch = loader.plan(0).updates
    with closing(loader.iter_updates(Position())) as updates:
        two = list(islice(updates, 2 * epoch))
    lengths = [sum(update.tgt_tokens for update in two[start : start + epoch]) for start in (0, epoch)]
    assert lengths[0] != lengths[1]


def test_the_type_of_a_tokenizer_is_read_from_its_model() -> None:
    assert small_tokenizer().model_type == "bpe"
    assert Tokenizer(train_model(model_type="unigram", vocab_size=320)).model_type == "unigram"
