"""Beam search against the enumeration of every output, which shares no code with it."""

from __future__ import annotations

import math
from itertools import chain, product
from typing import Any

import pytest
import torch
from support.models.packed import model_logits, pack, tiny_config
from torch import Tensor

from dstransformer.config import DecodingConfig, load_config
from dstransformer.data import BOS_ID, EOS_ID
from dstransformer.decoding import beam, beam_search
from dstransformer.decoding.beam import Hypothesis
from dstransformer.model import Ensemble, Transformer

VOCAB = 7  # the four special ids and three pieces; the embedding has an eighth row
PIECES = (4, 5, 6)
ALPHAS = [0.0, 0.6, 1.5]


def decoding(beam_size: int, **changes: Any) -> DecodingConfig:
    values = {"beam_size": beam_size, "length_penalty": 0.6, "max_extra_tokens": 2, "max_input_tokens": 0}
    return load_config("base").decoding.model_copy(update=values | changes)


def toy_model(seed: int, **changes: Any) -> Transformer:
    """A random model with a softmax so sharp and an end so unlikely that outputs of all lengths win."""
    torch.manual_seed(seed)
    model = Transformer(tiny_config(tie_embeddings="none", **changes), VOCAB).eval()
    with torch.no_grad():
        model.softmax.weight.mul_(4.0)
        model.decoder[-1].feed_forward_residual.norm.bias.fill_(1.0)
        model.softmax.weight[EOS_ID] -= 4.0 / model.config.d_model
    return model


def draw_sources(lengths: tuple[int, ...] = (2, 0, 3, 1, 2)) -> list[Tensor]:
    """Sources with these numbers of random pieces, each followed by the end token."""
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randint(4, VOCAB, (length,), generator=generator) for length in lengths]
    return [torch.cat((sentence, torch.tensor([EOS_ID]))) for sentence in drawn]


def search(
    model: Transformer, sources: list[Tensor], settings: DecodingConfig, n_best: int = 1, **more: Any
) -> list[list[Hypothesis]]:
    return beam_search(Ensemble([model]), *pack(sources), settings, vocab_size=VOCAB, n_best=n_best, **more)


@torch.no_grad()
def enumerate_outputs(model: Transformer, source: Tensor, most: int, alpha: float) -> list[Hypothesis]:
    """Every output of at most ``most`` pieces, scored by the packed decoder, best first."""
    outputs = [tokens for length in range(most + 1) for tokens in product(PIECES, repeat=length)]
    targets = [torch.tensor((BOS_ID, *tokens)) for tokens in outputs]
    logits = model_logits(model, [(source, target) for target in targets]).double()
    found = []
    for tokens, part in zip(outputs, logits.log_softmax(-1).split([len(target) for target in targets]), strict=True):
        log_probability = sum(part[place, token].item() for place, token in enumerate((*tokens, EOS_ID)))
        found.append(Hypothesis(list(tokens), log_probability / ((5 + len(tokens) + 1) / 6) ** alpha, log_probability))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


@torch.no_grad()
def search_by_definition(
    model: Transformer, source: Tensor, beam_size: int, least: int, most: int, alpha: float
) -> list[Hypothesis]:
    """The search of the guide, one hypothesis at a time; outputs have ``least`` to ``most`` pieces before their end."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished = []
    for length in range(most + 1):
        following = (EOS_ID,) if length == most else PIECES if length < least else (*PIECES, EOS_ID)
        candidates = []
        for log_probability, tokens in live:
            logits = model_logits(model, [(source, torch.tensor((BOS_ID, *tokens)))])[-1].double().log_softmax(-1)
            candidates += [(log_probability + logits[piece].item(), (*tokens, piece)) for piece in following]
        candidates.sort(key=lambda candidate: -candidate[0])
        for log_probability, tokens in candidates[:beam_size]:
            if tokens[-1] == EOS_ID:
                score = log_probability / ((5 + len(tokens)) / 6) ** alpha
                finished.append(Hypothesis(list(tokens[:-1]), score, log_probability))
        live = [candidate for candidate in candidates if candidate[1][-1] != EOS_ID][:beam_size]
    return sorted(finished, key=lambda hypothesis: -hypothesis.score)


def assert_same(actual: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[h.tokens for h in row] for row in actual] == [[h.tokens for h in row] for row in expected]
    for ours, theirs in zip(chain(*actual), chain(*expected), strict=True):
        assert ours.score == pytest.approx(theirs.score, abs=1e-4)
        assert ours.log_probability == pytest.approx(theirs.log_probability, abs=1e-4)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_what_enumeration_finds(seed: int, alpha: float) -> None:
    model = toy_model(seed)
    sources = draw_sources((2, 0, 1))
    # At most 27 hypotheses are alive before the last step, each with four continuations.
    found = search(model, sources, decoding(120, length_penalty=alpha), n_best=20)
    expected = [enumerate_outputs(model, source, len(source) - 1 + 2, alpha)[:20] for source in sources]
    assert_same(found, expected)


@pytest.mark.parametrize("kernels", ["1", "0"])
@pytest.mark.parametrize(("beam_size", "least"), [(2, 0), (3, 0), (3, 2)])
def test_a_narrow_beam_is_the_search_of_its_definition(
    beam_size: int, least: int, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    sources, settings = draw_sources((2, 0, 1)), decoding(beam_size, min_tokens=least)
    for seed in range(5):
        model = toy_model(seed)
        expected = [
            search_by_definition(model, source, beam_size, least, max(len(source) - 1 + 2, least), 0.6)[:beam_size]
            for source in sources
        ]
        assert_same(search(model, sources, settings, beam_size), expected)


@pytest.mark.parametrize("kernels", ["1", "0"])
@pytest.mark.parametrize("seed", range(3))
def test_outputs_begin_with_their_prefix(seed: int, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    model, sources = toy_model(seed), draw_sources((2, 0, 1))
    prefixes = [[5], [], [4, 6, 6, 5]]
    found = search(model, sources, decoding(120), n_best=5, prefixes=prefixes)
    for row, source, prefix in zip(found, sources, prefixes, strict=True):
        most = max(len(source) - 1 + 2, len(prefix))
        every = enumerate_outputs(model, source, most, 0.6)
        assert_same([row], [[one for one in every if one.tokens[: len(prefix)] == prefix][:5]])


@pytest.mark.parametrize("kernels", ["1", "0"])
def test_an_ensemble_averages_probabilities(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    models, sources = [toy_model(0), toy_model(1, num_layers=1)], draw_sources((2, 1))
    settings = decoding(120, length_penalty=0.0)
    found = beam_search(Ensemble(models), *pack(sources), settings, vocab_size=VOCAB, n_best=5)
    alone = beam_search(Ensemble([models[0], models[0]]), *pack(sources), settings, vocab_size=VOCAB, n_best=5)
    assert_same(alone, search(models[0], sources, settings, n_best=5))
    for row, source in zip(found, sources, strict=True):
        for one in row:
            target = torch.tensor((BOS_ID, *one.tokens))
            mean = torch.stack([model_logits(model, [(source, target)]).softmax(-1) for model in models]).mean(0).log()
            expected = sum(mean[place, token].item() for place, token in enumerate((*one.tokens, EOS_ID)))
            assert one.log_probability == pytest.approx(expected, abs=1e-4)


def test_winners_of_the_toy_models_have_all_lengths() -> None:
    winners = [row[0] for seed in range(16) for row in search(toy_model(seed), draw_sources((2, 1)), decoding(40))]
    assert {len(winner.tokens) for winner in winners} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("alpha", [*ALPHAS, 9.0])  # with 9.0, every longer output scores higher
@pytest.mark.parametrize("seed", range(5))
def test_a_beam_of_one_is_greedy(seed: int, alpha: float) -> None:
    model = toy_model(seed)
    sources = draw_sources()
    found = search(model, sources, decoding(1, length_penalty=alpha, max_extra_tokens=6))
    for source, (hypothesis,) in zip(sources, found, strict=True):
        tokens: list[int] = []
        while len(tokens) < len(source) - 1 + 6:
            logits = model_logits(model, [(source, torch.tensor([BOS_ID, *tokens]))])[-1]
            best = max((*PIECES, EOS_ID), key=lambda piece: logits[piece].item())
            if best == EOS_ID:
                break
            tokens.append(best)
        assert hypothesis.tokens == tokens


@pytest.mark.parametrize("beam_size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_a_batch_equals_one_sentence_at_a_time(seed: int, beam_size: int) -> None:
    model = toy_model(seed)
    sources = draw_sources((2, 0, 9, 1, 5, 3))
    settings = decoding(beam_size, max_extra_tokens=8)
    alone = [search(model, [source], settings, beam_size)[0] for source in sources]
    assert_same(search(model, sources, settings, beam_size), alone)


@pytest.mark.parametrize("alpha", [0.6, 9.0])
@pytest.mark.parametrize("n_best", [1, 4])
@pytest.mark.parametrize("seed", range(2))
def test_dropping_sentences_or_rows_changes_nothing(
    seed: int, n_best: int, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = toy_model(seed)
    sources = draw_sources((2, 0, 9, 1, 5, 3))
    settings = decoding(4, length_penalty=alpha, max_extra_tokens=8)
    by_row = search(model, sources, settings, n_best)
    monkeypatch.setenv("DST_CPU_KERNELS", "0")
    by_sentence = search(model, sources, settings, n_best)
    monkeypatch.setattr(beam, "DROP_SHARE", 1.0)
    together = search(model, sources, settings, n_best)
    assert_same(by_row, together)
    assert_same(by_sentence, together)


@pytest.mark.parametrize("kernels", ["1", "0"])
@pytest.mark.parametrize("seed", range(3))
def test_a_hypothesis_far_below_the_best_is_pruned(seed: int, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    model, sources = toy_model(seed), draw_sources((2, 9, 5))
    unpruned = search(model, sources, decoding(4, max_extra_tokens=8))
    assert_same(search(model, sources, decoding(4, max_extra_tokens=8, pruning_threshold=1e4)), unpruned)
    # With only the best continuation of each step, the search is greedy until the best continuation is the end.
    chosen = search(model, sources, decoding(4, max_extra_tokens=8, pruning_threshold=1e-9))
    greedy = search(model, sources, decoding(1, max_extra_tokens=8))
    for (found,), (expected,) in zip(chosen, greedy, strict=True):
        assert found.score >= expected.score - 1e-4
        assert found.tokens[: len(expected.tokens)] == expected.tokens[: len(found.tokens)]


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("n_best", [1, 3])
def test_stopping_early_changes_nothing(n_best: int, alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = decoding(3, length_penalty=alpha, max_extra_tokens=16)
    models = [toy_model(seed) for seed in range(4)]
    early = [search(model, draw_sources(), settings, n_best) for model in models]
    monkeypatch.setattr(beam, "best_reachable_score", lambda live, _: live.masked_fill(live.isfinite(), math.inf))
    late = [search(model, draw_sources(), settings, n_best) for model in models]
    for ours, theirs in zip(early, late, strict=True):
        assert_same(ours, theirs)


def biased_model(seed: int, piece: int) -> Transformer:
    """A model that prefers one piece everywhere: the bias of the last norm sets the direction of every output."""
    model = toy_model(seed)
    with torch.no_grad():
        model.decoder[-1].feed_forward_residual.norm.bias.fill_(2.0)
        model.softmax.weight[piece] = 3.0
    return model


@pytest.mark.parametrize("piece", [0, 1, 2, 7])
def test_forbidden_pieces_are_never_generated(piece: int) -> None:
    model = biased_model(0, piece)
    source = draw_sources((2,))[0]
    assert model_logits(model, [(source, torch.tensor([BOS_ID]))])[0].argmax() == piece
    for row in search(model, draw_sources(), decoding(4), n_best=4):
        for hypothesis in row:
            assert set(hypothesis.tokens) <= set(PIECES)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_an_endless_output_is_cut_at_the_limit(beam_size: int) -> None:
    found = search(biased_model(0, PIECES[0]), draw_sources((3, 0)), decoding(beam_size, length_penalty=9.0))
    assert [row[0].tokens for row in found] == [[PIECES[0]] * 5, [PIECES[0]] * 2]


def test_a_limit_of_zero_pieces_gives_an_empty_output() -> None:
    assert search(toy_model(0), draw_sources((0,)), decoding(4, max_extra_tokens=0))[0][0].tokens == []


def test_learned_positions_limit_the_output() -> None:
    model = biased_model(0, PIECES[0])
    bounded = Transformer(model.config.model_copy(update={"positions": "learned", "max_positions": 6}), VOCAB).eval()
    bounded.load_state_dict(model.state_dict(), strict=False)
    found = search(bounded, draw_sources((3,)), decoding(2, length_penalty=9.0, max_extra_tokens=50))
    assert len(found[0][0].tokens) == 5


@pytest.mark.parametrize("kernels", ["1", "0"])
@pytest.mark.parametrize("weight", ["softmax.weight", "decoder.0.feed_forward.inner.weight"])
def test_a_model_with_nan_weights_finds_nothing(weight: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    model = toy_model(0)
    with torch.no_grad():
        model.get_parameter(weight).fill_(float("nan"))
    assert search(model, draw_sources((2, 0)), decoding(4)) == [[], []]


def test_half_precision_scores_are_summed_in_full_precision() -> None:
    model = toy_model(2).bfloat16()
    (hypothesis,) = search(model, draw_sources((4,)), decoding(2, max_extra_tokens=20))[0]
    target = torch.tensor([BOS_ID, *hypothesis.tokens])
    logits = model_logits(model, [(draw_sources((4,))[0], target)]).float().log_softmax(-1)
    expected = logits.gather(1, torch.tensor([*hypothesis.tokens, EOS_ID])[:, None]).sum().item()
    assert hypothesis.log_probability == pytest.approx(expected, rel=0.02)


def test_n_best_beyond_the_beam_is_refused() -> None:
    with pytest.raises(ValueError, match=r"n_best is 5.*4"):
        search(toy_model(0), draw_sources(), decoding(4), n_best=5)


@pytest.mark.parametrize("kernels", ["1", "0"])
def test_long_outputs_make_the_caches_grow(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", kernels)
    model = biased_model(0, PIECES[0])
    settings = decoding(3, length_penalty=9.0, max_extra_tokens=70)
    (hypothesis,), *_ = search(model, draw_sources((3, 1, 0, 2)), settings)
    assert len(hypothesis.tokens) == 73
    target = torch.tensor([BOS_ID, *hypothesis.tokens])
    logits = model_logits(model, [(draw_sources((3,))[0], target)]).log_softmax(-1)
    expected = logits.gather(1, torch.tensor([*hypothesis.tokens, EOS_ID])[:, None]).sum().item()
    assert hypothesis.log_probability == pytest.approx(expected, abs=1e-2)
