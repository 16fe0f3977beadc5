"""Words and pieces, merged weights, and the colours of heads."""

from __future__ import annotations

import numpy as np
import pytest
from support.data.corpora import TEXT, small_tokenizer

from dstransformer.data import BOS_ID, EOS_ID
from dstransformer.extras.paper.attention_pictures import Sentence, merge_weights


def split(text: str) -> Sentence:
    return Sentence.from_ids(small_tokenizer(), [BOS_ID, *small_tokenizer().encode([text])[0], EOS_ID])


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    weights = rng.random(shape, dtype=np.float32) + 0.01
    return np.asarray(weights / weights.sum(-1, keepdims=True))


@pytest.mark.parametrize(("text", "words"), [
    ("The quick brown fox", "The quick brown fox"),
    ("Zwölf Boxkämpfer jagen Viktor.", "Zwölf Boxkämpfer jagen Viktor ."),
    ("a 'dog', (lazy)!", "a ' dog ' , ( lazy ) !"),
    ("don't jump-start", "don't jump-start"),
    ("ʘ 🦊 中文", "ʘ 🦊 中文"),
    ("...", ". . ."),
])  # fmt: skip
def test_text_is_split_into_words(text: str, words: str) -> None:
    assert " ".join(split(text).words) == f"<s> {words} </s>"


@pytest.mark.parametrize("text", TEXT)
def test_pieces_belong_to_words(text: str) -> None:
    sentence = split(text)
    assert len(sentence.pieces) == len(sentence.word_of)
    assert sentence.pieces[0] == "<s>"
    assert "".join(sentence.pieces[1:-1]).replace("▁", "") == "".join(sentence.words[1:-1])
    assert sorted(set(sentence.word_of)) == list(range(len(sentence.words)))
    assert (np.diff(sentence.word_of) >= 0).all()


def test_find_returns_all_pieces_of_a_word() -> None:
    sentence = split("Viktor jagen viktor.")
    found = sentence.find("VIKTOR")
    assert {sentence.words[sentence.word_of[i]] for i in found} == {"Viktor", "viktor"}
    assert len(found) == sum(sentence.words[word].casefold() == "viktor" for word in sentence.word_of)
    assert sentence.find("</s>") == [len(sentence.pieces) - 1]
    inner = next(piece for piece, word in zip(sentence.pieces, sentence.word_of, strict=True)
                 if piece not in sentence.words)  # fmt: skip
    assert [sentence.pieces[i] for i in sentence.find(inner)] == [inner] * sentence.pieces.count(inner)
    assert sentence.find("nowhere") == []


def test_merging_follows_the_formula() -> None:
    queries, keys = split("Zwölf Boxkämpfer jagen."), split("The quick brown fox jumps.")
    weights = draw(np.random.default_rng(1), 2, len(queries.pieces), len(keys.pieces))
    merged = merge_weights(weights, queries, keys)
    assert merged.shape == (2, len(queries.words), len(keys.words))
    for w in range(len(queries.words)):
        for v in range(len(keys.words)):
            of_w, of_v = np.flatnonzero(queries.word_of == w), np.flatnonzero(keys.word_of == v)
            expected = sum(weights[:, i, j] for i in of_w for j in of_v) / len(of_w)
            np.testing.assert_allclose(merged[:, w, v], expected, rtol=1e-5)
