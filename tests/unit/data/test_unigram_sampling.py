"""Pieces drawn from a unigram model: their probabilities, SentencePiece's lengths, determined by seed and place."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from itertools import islice

import numpy as np
import pytest
import sentencepiece
from support.data.corpora import TEXT, train_model, write_corpus

from data_prep.grammar.grammar import generate_pairs
from dstransformer.data import UNK_ID, Corpus, Split, Tokenizer
from dstransformer.data.budget import Budget
from dstransformer.data.loader import Position, Update, UpdateLoader
from dstransformer.data.subwords import Pairs, UnigramSampling, Word

MODEL = {"model_type": "unigram", "vocab_size": 340}
SENTENCES = [text + " " + "Zwei Männer unterhalten sich."[: 5 + place % 20] for place, text in enumerate(TEXT * 8)]
TRAINING = [*SENTENCES, *(sentence for pair in generate_pairs(500, seed=1) for sentence in pair)]


@cache
def tokenizer(*symbols: str) -> Tokenizer:
    return Tokenizer(train_model(TRAINING, **MODEL, user_defined_symbols=list(symbols)))


def encode(texts: list[str], own: Tokenizer | None = None) -> tuple[np.ndarray, np.ndarray]:
    found = (own or tokenizer()).encode(texts)
    return np.concatenate(found).astype(np.int32), np.array([len(row) for row in found], dtype=np.int32)


def pairs(texts: list[str]) -> Pairs:
    return *encode(texts), *encode(texts[::-1])


def rows(ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    return [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])]


def build(alpha: float = 0.2, seed: int = 1, max_pieces: int | None = None) -> UnigramSampling:
    return UnigramSampling(tokenizer(), alpha, seed, max_pieces)


def divisions(text: str) -> Iterator[Word]:
    """All divisions of a text into pieces."""
    if not text:
        yield ()
    for end in range(1, len(text) + 1):
        if found := tokenizer().scores().get(text[:end]):
            yield from ((found[0], *rest) for rest in divisions(text[end:]))


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_each_division_is_drawn_with_its_probability(alpha: float) -> None:
    score = dict(tokenizer().scores().values())
    texts = (piece for piece in tokenizer().scores() if piece.startswith("▁") and 3 <= len(piece) <= 5)
    word, all_of_it = next((text, found) for text in texts if 3 <= len(found := list(divisions(text))) <= 12)
    weights = {pieces: math.exp(alpha * sum(score[token] for token in pieces)) for pieces in all_of_it}
    trials = 30_000
    ids, lengths = encode([word[1:]] * trials)
    drawn = Counter(tuple(row) for row in rows(*build(alpha).sample((ids, lengths, ids, lengths), 0, 0, 0)[:2]))
    assert set(drawn) <= set(weights)
    for pieces, weight in weights.items():
        assert drawn[pieces] / trials == pytest.approx(weight / sum(weights.values()), abs=0.012)


def test_sentences_grow_as_much_as_with_sentencepiece_sampling() -> None:
    texts = TEXT * 300
    ours = build(0.2).sample((*encode(texts), *encode(texts)), 0, 0, 0)[1].sum()
    theirs = sentencepiece.SentencePieceProcessor(model_proto=train_model(TRAINING, **MODEL)).encode(
        texts, enable_sampling=True, alpha=0.2, nbest_size=-1
    )
    assert ours == pytest.approx(sum(map(len, theirs)), rel=0.02)
    assert ours > 1.02 * sum(map(len, tokenizer().encode(texts)))


def test_the_most_probable_division_is_that_of_sentencepiece() -> None:
    """A large alpha leaves nothing to chance."""
    stored = encode(SENTENCES)
    sampled = rows(*build(10_000.0).sample((*stored, *stored), 0, 0, 0)[:2])
    same = sum(a == b for a, b in zip(sampled, rows(*stored), strict=True))
    assert same == len(SENTENCES)


def test_pieces_change_but_the_text_does_not() -> None:
    before = pairs(SENTENCES)
    after = build().sample(before, 0, 0, 0)
    for side in (slice(0, 2), slice(2, 4)):
        old, new = (rows(*both[side]) for both in (before, after))
        assert tokenizer().decode(new) == tokenizer().decode(old)
        assert old != new


def test_pieces_depend_on_seed_epoch_update_and_micro_batch() -> None:
    places = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    found, again = (
        [build(seed=seed).sample(pairs(SENTENCES), *place) for seed in (1, 2) for place in places] for _ in range(2)
    )
    for one, two in zip(found, again, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert len({one[0].tobytes() for one in found}) == len(found)


def test_bytes_unknown_pieces_symbols_and_long_sentences_are_kept() -> None:
    foreign = encode(["🦊 中文"])[0]
    ids = np.array([*foreign, UNK_ID], dtype=np.int32)
    unknown = (ids, np.array([len(ids)], dtype=np.int32))
    assert rows(*build(0.1).sample((*unknown, *unknown), 0, 0, 0)[:2]) == [ids.tolist()]
    marked = tokenizer("[NUM]")
    stored = encode(["Zwei Männer [NUM] vor [NUM]x Haus."] * 50, marked)
    sampled = rows(*UnigramSampling(marked, 0.1, 1, None).sample((*stored, *stored), 0, 0, 0)[:2])
    assert all(row.count(marked.symbols["[NUM]"]) == 2 for row in sampled)
    assert sampled != rows(*stored)
    before = encode(SENTENCES)
    longest = int(before[1].max())
    assert max(build(0.1, max_pieces=longest).sample((*before, *before), 0, 0, 0)[1]) <= longest


def test_long_words_are_divided_too() -> None:
    """Text without spaces, whose words are not remembered."""
    text = "".join(SENTENCES[:6]).replace(" ", "")
    stored = encode([text])
    found = build().sample((*stored, *stored), 0, 0, 0)
    assert tokenizer().decode(rows(*found[:2])) == [text]
    assert rows(*found[:2]) != rows(*stored)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    ids = tokenizer().encode(SENTENCES)
    corpus = write_corpus(tmp_path_factory.mktemp("unigram") / "corpus", list(zip(ids, ids[::-1], strict=True)))
    return Corpus.open(corpus).split("train")


def load(split: Split, rank: int, world_size: int) -> list[Update]:
    loader = UpdateLoader(
        split, Budget(400, 400, 4), seed=1, rank=rank, world_size=world_size, prefetch=2, pin_memory=False,
        subwords=build(),
    )  # fmt: skip
    with closing(loader.iter_updates(Position())) as updates:
        return list(islice(updates, 3))


def test_all_layouts_draw_the_same_pieces(split: Split) -> None:
    alone, two = load(split, 0, 1), [load(split, rank, 2) for rank in range(2)]
    for whole, *shares in zip(alone, *two, strict=True):
        dealt = [batch for pair in zip(*(share.batches for share in shares), strict=True) for batch in pair]
        for one, other in zip(whole.batches, dealt, strict=True):
            assert one.src.tolist() == other.src.tolist()
            assert one.tgt_out.tolist() == other.tgt_out.tolist()
