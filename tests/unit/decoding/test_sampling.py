"""Sampling against the distribution that it draws from."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from support.data.corpora import TEXT

from dstransformer.decoding import Sampling, Translator
from dstransformer.decoding.sampling import draw_tokens, uniform_numbers
from dstransformer.errors import ConfigError
from dstransformer.model.loss import CHUNK_LOGITS

LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0])


def shares(sampling: Sampling, count: int = 20_000) -> list[float]:
    uniform = torch.from_numpy(uniform_numbers(3, np.arange(count), 1, 0))
    drawn = Counter(draw_tokens(LOGITS.expand(count, -1), sampling, uniform).tolist())
    return [drawn[piece] / count for piece in range(len(LOGITS))]


@pytest.mark.parametrize(("sampling", "kept", "temperature"), [
    (Sampling(), 4, 1.0),
    (Sampling(temperature=0.5), 4, 0.5),
    (Sampling(top_k=2), 2, 1.0),
    (Sampling(top_k=9), 4, 1.0),
    (Sampling(top_p=0.7), 2, 1.0),  # the probabilities are 0.61, 0.23, 0.14 and 0.03
    (Sampling(top_p=0.6), 1, 1.0),
    (Sampling(top_k=3, top_p=0.9), 3, 1.0),
])  # fmt: skip
def test_pieces_are_drawn_as_often_as_they_are_probable(sampling: Sampling, kept: int, temperature: float) -> None:
    expected = torch.zeros(4)
    expected[:kept] = (LOGITS / temperature)[:kept].softmax(-1)
    assert shares(sampling) == pytest.approx(expected.tolist(), abs=0.015)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=2), Sampling(top_p=0.7)])
def test_drawing_in_chunks_changes_nothing(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, uniform = torch.randn(200, 9), torch.rand(200, dtype=torch.float64)
    whole = draw_tokens(logits, sampling, uniform)
    monkeypatch.setitem(CHUNK_LOGITS, "cpu", 1)
    assert torch.equal(draw_tokens(logits, sampling, uniform), whole)


def test_random_numbers_are_uniform_and_independent() -> None:
    numbers = uniform_numbers(1, np.arange(1000), 4, 7).reshape(1000, 4)
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    assert numbers.mean() == pytest.approx(0.5, abs=0.02)
    assert np.abs(np.corrcoef(numbers.T) - np.eye(4)).max() < 0.1
    for changed in (uniform_numbers(2, np.arange(1000), 4, 7), uniform_numbers(1, np.arange(1000), 4, 8)):
        assert abs(np.corrcoef(numbers.ravel(), changed)[0, 1]) < 0.06
    # A function of seed, sentence, output and position only.
    assert uniform_numbers(1, np.array([500]), 2, 7).tolist() == numbers[500, :2].tolist()


@pytest.mark.parametrize("kernels", ["1", "0"])
def test_a_sample_depends_on_its_seed_and_line_only(
    translator: Translator, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    lines = [TEXT[0], "dog", *TEXT[1:], "", "dog"]
    sampling = Sampling(seed=5)
    together = [[one.tokens for one in found] for found in translator.search(lines, n_best=3, sampling=sampling)]
    alone = [
        [one.tokens for one in translator.search([line], n_best=3, sampling=sampling, first=number)[0]]
        for number, line in enumerate(lines, 1)
    ]
    assert together == alone
    assert together[1] != together[-1], "two lines with the same text are drawn independently"
    assert len({tuple(tokens) for tokens in together[0]}) == 3, "so are the outputs of a line"
    others = translator.search(lines, n_best=3, sampling=Sampling(seed=6))
    assert together[0] != [one.tokens for one in others[0]]


def test_drawing_among_one_piece_is_greedy(translator: Translator) -> None:
    translator.settings = translator.settings.model_copy(update={"beam_size": 1})
    greedy, drawn = translator.search(TEXT), translator.search(TEXT, sampling=Sampling(top_k=1))
    for (expected,), (found,) in zip(greedy, drawn, strict=True):
        assert found.tokens == expected.tokens
        assert found.log_probability == pytest.approx(expected.log_probability, rel=1e-5)
        assert found.score == pytest.approx(expected.score, rel=1e-5)


def test_samples_keep_prefix_and_lengths(translator: Translator) -> None:
    translator.settings = translator.settings.model_copy(update={"min_tokens": 4, "max_extra_tokens": 2})
    prefix = translator.tokenizer.encode(["fox jumps"])[0]
    for line, found in zip(
        TEXT, translator.search(TEXT, n_best=5, prefixes=["fox jumps"] * len(TEXT), sampling=Sampling()), strict=True
    ):
        most = max(len(translator.tokenizer.encode([line])[0]) + 2, len(prefix), 4)
        for one in found:
            assert one.tokens[: len(prefix)] == prefix
            assert 4 <= len(one.tokens) <= most


@pytest.mark.parametrize(("values", "message"), [
    ({"temperature": 0.0}, "--temperature 0.0: must be 0.01 to 100"),
    ({"top_k": -1}, "--top-k -1: must be 0 or more"),
    ({"top_p": 0.0}, "--top-p 0.0: must be more than 0, at most 1"),
    ({"top_p": float("nan")}, "--top-p nan"),
    ({"seed": -1}, "--seed -1"),
])  # fmt: skip
def test_impossible_values_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sampling(**values)  # type: ignore[arg-type]


def test_what_a_model_that_computes_nan_draws_is_no_output(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    with torch.no_grad():
        translator.model.softmax_weight.fill_(float("nan"))
    outputs = translator.search(TEXT[:2], sampling=Sampling(), n_best=2)
    assert [[(one.text, one.log_probability) for one in found] for found in outputs] == [[("", 0.0)]] * 2
    assert "2 of 2 sentences have no output; the first is sentence 1: the model computes NaN" in caplog.text
