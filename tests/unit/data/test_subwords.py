"""Sampled pieces for the same sentences, by BPE dropout and by a unigram model: text, probabilities, what decides."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.data.corpora import TEXT, train_model, write_corpus
from support.data.loading import build_loader, take

from data_prep.grammar.sentences import generate_pairs
from dstransformer.data import BOS_ID, EOS_ID, UNK_ID, Corpus, Split, Tokenizer
from dstransformer.data.loader import Update
from dstransformer.data.plan import Budget, LengthSums, Position
from dstransformer.data.reader import Pairs
from dstransformer.data.subwords import BpeDropout, SubwordSampling, UnigramSampling, Word

BUDGET = Budget(src_tokens=400, tgt_tokens=400, micro_batches=4)
SENTENCES = [text + " " + "Zwei Männer unterhalten sich."[: 5 + place % 20] for place, text in enumerate(TEXT * 8)]
KINDS = ["bpe", "unigram"]


@cache
def model(kind: str, *symbols: str) -> bytes:
    if kind == "bpe":
        return train_model(user_defined_symbols=list(symbols), vocab_size=340 + 2 * len(symbols))
    training = [*SENTENCES, *(sentence for pair in generate_pairs(500, seed=1) for sentence in pair[:2])]
    return train_model(training, model_type="unigram", vocab_size=340, user_defined_symbols=list(symbols))


@cache
def tokenizer(kind: str, *symbols: str) -> Tokenizer:
    return Tokenizer(model(kind, *symbols))


def build(
    kind: str, amount: float = 0.2, *symbols: str, seed: int = 1, max_pieces: int | None = None
) -> SubwordSampling:
    """BPE dropout with the probability ``amount``, or sampling with this alpha."""
    sampling: Any = BpeDropout if kind == "bpe" else UnigramSampling
    built: SubwordSampling = sampling(tokenizer(kind, *symbols), amount, seed, max_pieces)
    return built


def encode(kind: str, texts: list[str], *symbols: str) -> tuple[np.ndarray, np.ndarray]:
    found = tokenizer(kind, *symbols).encode(texts)
    return np.concatenate(found).astype(np.int32), np.array([len(row) for row in found], dtype=np.int32)


def pairs(kind: str) -> Pairs:
    return Pairs(*encode(kind, SENTENCES), *encode(kind, SENTENCES[::-1]))


def rows(ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    return [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])]


def sample_rows(sampling: SubwordSampling, ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    """The sampled source side of sentences without a target."""
    return rows(*sampling.sample(Pairs(ids, lengths, ids[:0], lengths * 0), Position(), 0)[:2])


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_change_but_the_text_does_not(kind: str) -> None:
    before = pairs(kind)
    after = build(kind).sample(before, Position(), 0)
    for sides in zip(before.sides, after.sides, strict=True):
        old, new = (rows(*side) for side in sides)
        assert tokenizer(kind).decode(new) == tokenizer(kind).decode(old)
        assert old != new
        assert sum(map(len, new)) > sum(map(len, old))


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_depend_on_seed_epoch_update_and_micro_batch(kind: str) -> None:
    places = [(Position(), 0), (Position(epoch=1), 0), (Position(update=1), 0), (Position(), 1)]
    found, again = (
        [build(kind, seed=seed).sample(pairs(kind), *place) for seed in (1, 2) for place in places] for _ in range(2)
    )
    for one, two in zip(found, again, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert len({one[0].tobytes() for one in found}) == len(found)
    same = Pairs(*encode(kind, SENTENCES), *encode(kind, SENTENCES))
    src, tgt = build(kind).sample(same, Position(), 0).sides
    assert rows(*src) != rows(*tgt), "the two sides differ"


@pytest.mark.parametrize(("kind", "amount"), [("bpe", 1e-12), ("unigram", 10_000.0)])
def test_without_chance_pieces_are_those_of_sentencepiece(kind: str, amount: float) -> None:
    texts = [*SENTENCES, "Zwölf quirlige Boxer the of over Männer", "a", "  übermäßig  "]
    stored = encode(kind, texts)
    assert sample_rows(build(kind, amount), *stored) == rows(*stored)


def test_each_merge_is_dropped_with_the_given_probability() -> None:
    """A piece of two characters takes a single merge."""
    own = tokenizer("bpe")
    word = next(text for text in own.pieces(range(own.vocab_size)) if len(text) == 2 and text.isalpha())
    merged = own.encode([word])[0][1:]
    assert own.pieces(merged) == [word]
    trials = 20_000
    stored = np.array(merged * trials, dtype=np.int32), np.ones(trials, dtype=np.int32)
    for probability in (0.1, 0.5):
        kept = sample_rows(build("bpe", probability), *stored).count(merged)
        assert kept / trials == pytest.approx(1 - probability, abs=0.015)
    (single,) = sample_rows(build("bpe", 0.999_999), *encode("bpe", ["Zwei Männer"]))
    assert len(single) == len("▁Zwei▁Männer")


def divisions(text: str) -> Iterator[Word]:
    """All divisions of a text into pieces of the unigram model."""
    if not text:
        yield ()
    for end in range(1, len(text) + 1):
        if found := tokenizer("unigram").scores().get(text[:end]):
            yield from ((found[0], *rest) for rest in divisions(text[end:]))


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_each_division_is_drawn_with_its_probability(alpha: float) -> None:
    scores = tokenizer("unigram").scores()
    score = dict(scores.values())
    texts = (piece for piece in scores if piece.startswith("▁") and 3 <= len(piece) <= 5)
    word, all_of_it = next((text, found) for text in texts if 3 <= len(found := list(divisions(text))) <= 12)
    weights = {pieces: math.exp(alpha * sum(score[token] for token in pieces)) for pieces in all_of_it}
    trials = 30_000
    drawn = Counter(map(tuple, sample_rows(build("unigram", alpha), *encode("unigram", [word[1:]] * trials))))
    assert set(drawn) <= set(weights)
    for pieces, weight in weights.items():
        assert drawn[pieces] / trials == pytest.approx(weight / sum(weights.values()), abs=0.012)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_unknown_pieces_symbols_and_sentences_that_would_grow_too_long_are_kept(kind: str) -> None:
    ids = np.array([*encode(kind, ["🦊 中文"])[0], UNK_ID], dtype=np.int32)
    assert sample_rows(build(kind, 0.9), ids, np.array([len(ids)], dtype=np.int32)) == [ids.tolist()]
    symbols = ("[NUM]", "<2de>")
    stored = encode(kind, ["<2de> Zwei Männer [NUM] vor [NUM]x Haus."] * 50, *symbols)
    sampled = sample_rows(build(kind, 0.3, *symbols), *stored)
    names = tokenizer(kind, *symbols).symbols
    assert all([row.count(names[symbol]) for symbol in symbols] == [2, 1] for row in sampled)
    assert sampled != rows(*stored)
    before = encode(kind, SENTENCES)
    longest = int(before[1].max())
    after = sample_rows(build(kind, 0.3, max_pieces=longest), *before)
    assert max(map(len, after)) <= longest
    assert {new == old for new, old in zip(after, rows(*before), strict=True)} == {True, False}


@pytest.fixture(scope="module", params=KINDS)
def corpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Split]:
    kind = str(request.param)
    ids = tokenizer(kind).encode(SENTENCES)
    folder = write_corpus(tmp_path_factory.mktemp(kind) / "corpus", list(zip(ids, ids[::-1], strict=True)))
    return kind, Corpus.open(folder).split("train")


def load(split: Split, sampling: SubwordSampling | None, rank: int = 0, world_size: int = 1) -> list[Update]:
    loader = build_loader(split, BUDGET, rank=rank, world_size=world_size, subwords=sampling)
    assert loader.samples == (sampling is not None)
    return take(loader, 2 * loader.plan(0).updates)


def test_all_layouts_compute_the_same_pieces_and_lengths_and_others_in_each_epoch(corpus: tuple[str, Split]) -> None:
    kind, split = corpus
    alone = load(split, build(kind))
    assert [update.following for update in alone] == [update.following for update in load(split, None)]
    two = [load(split, build(kind), rank, 2) for rank in range(2)]
    for whole, *shares in zip(alone, *two, strict=True):
        dealt = [batch for pair in zip(*(share.batches for share in shares), strict=True) for batch in pair]
        for one, other in zip(whole.batches, dealt, strict=True):
            assert one.src.tolist() == other.src.tolist()
            assert one.tgt_out.tolist() == other.tgt_out.tolist()
            assert {one.tgt_in[0].item(), one.tgt_out[-1].item()} == {BOS_ID, EOS_ID}
        packings = [(batch.src_packing.lengths, batch.tgt_packing.lengths) for batch in whole.batches]
        assert whole.sums == LengthSums.of(*(np.concatenate([of[side].numpy() for of in packings]) for side in (0, 1)))
        sums = [[getattr(share.sums, name) for share in shares] for name in LengthSums.__annotations__]
        assert [sum(one) for one in sums] == [getattr(whole.sums, name) for name in LengthSums.__annotations__]
    half = len(alone) // 2
    assert sum(one.tgt_tokens for one in alone[:half]) != sum(one.tgt_tokens for one in alone[half:])


@pytest.mark.parametrize("kind", KINDS)
def test_the_type_of_a_tokenizer_is_read_from_its_model(kind: str) -> None:
    assert tokenizer(kind).model_type == kind
