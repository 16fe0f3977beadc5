"""How many sentences a GPU decodes at once, and that looking late for what is done changes no result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from support.models.packed import VOCAB, draw_pairs, pack, tiny_config

from dstransformer.config import load_config
from dstransformer.data import EOS_ID
from dstransformer.data.plan import plan_batches
from dstransformer.decoding import beam, beam_search
from dstransformer.decoding.devices import decode_batches
from dstransformer.decoding.engine import MEMORY_SHARE, SearchMemory
from dstransformer.model import Ensemble, Transformer
from dstransformer.model.ops import reference

#: ``base`` in bf16 with 37,000 pieces and beam 4.
BASE = SearchMemory(position_bytes=6 * 1024 * 2, row_bytes=37_000 * 10, beam_size=4, extra_tokens=50)


def test_the_bytes_follow_from_the_shapes() -> None:
    models, settings = Ensemble([Transformer(tiny_config(), VOCAB).bfloat16()]), load_config("base").decoding
    config, found = models.members[0].config, SearchMemory.of(models, settings)
    assert found.position_bytes == 2 * config.num_layers * config.num_heads * (config.d_k + config.d_v)
    assert found.row_bytes == (2 + 4 + 4) * len(models.members[0].softmax_weight)
    assert SearchMemory.of(models.float(), settings).position_bytes == 2 * found.position_bytes
    # 14 + 50 positions fit into 64, 15 + 50 need 128
    assert BASE.sentence_bytes(14) == 12_288 * (14 + 4 * 64) + 4 * 370_000
    assert BASE.sentence_bytes(15) == 12_288 * (15 + 4 * 128) + 4 * 370_000


def test_a_long_prefix_takes_memory_as_a_long_output_does() -> None:
    given = replace(BASE, longest_prefix=299)  # 300 positions need 512
    assert given.sentence_bytes(14) == 12_288 * (14 + 4 * 512) + 4 * 370_000
    assert replace(BASE, longest_prefix=63).sentence_bytes(14) == BASE.sentence_bytes(14)


@pytest.mark.parametrize("free", [1 << 30, 8 << 30, 80 << 30])
def test_a_batch_fits_in_memory(free: int) -> None:
    lengths, most = [2] * 9000 + [30] * 5000 + [200] * 300, 32_768
    batches = plan_batches(lengths, most, lambda tokens: BASE.least_tokens(tokens, most, free))
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    needed = [len(batch) * BASE.sentence_bytes(max(lengths[number] + 1 for number in batch)) for batch in batches]
    tokens = [sum(lengths[number] + 1 for number in batch) for batch in batches]
    assert max(needed) <= MEMORY_SHARE * free
    assert max(tokens) <= most
    assert all(max(lengths[n] for n in after) <= min(lengths[n] for n in before) for before, after in pairwise(batches))


@pytest.mark.parametrize(("free", "sentences"), [(1 << 30, 105), (8 << 30, 840), (80 << 30, 1057)])
def test_memory_or_the_limit_of_tokens_fills_a_batch(free: int, sentences: int) -> None:
    first, *_ = plan_batches([30] * 5000, 32_768, lambda tokens: BASE.least_tokens(tokens, 32_768, free))
    assert len(first) == sentences


def test_a_sentence_that_does_not_fit_is_a_batch_of_one() -> None:
    assert plan_batches([9, 9], 100, lambda _: 1000) == [[0], [1]]


def test_what_does_not_fit_in_memory_is_decoded_in_halves(caplog: pytest.LogCaptureFixture) -> None:
    def decode(batch: Sequence[int]) -> list[int]:
        if len(batch) > 2:
            torch.empty(1 << 60)  # the allocator's own error
        return [10 * index for index in batch]

    decoded: list[int] = []
    found = list(decode_batches(decode, [range(9)], decoded.append))
    assert found == [(index, 10 * index) for index in range(9)]
    assert decoded == [2, 2, 2, 1, 2]
    assert "a batch of 9 sentences did not fit in memory: it is decoded in halves" in caplog.text


def test_other_failures_and_a_sentence_that_does_not_fit_are_raised() -> None:
    def fail(batch: Sequence[int]) -> list[int]:
        raise RuntimeError(f"a fault with {len(batch)} sentences")

    with pytest.raises(RuntimeError, match="a fault with 4 sentences"):
        list(decode_batches(fail, [range(4)], None))
    with pytest.raises(RuntimeError, match="allocate"):
        list(decode_batches(lambda batch: [torch.empty(1 << 60) for _ in batch], [range(4)], None))


@pytest.mark.parametrize("beam_size", [1, 4])
def test_looking_for_what_is_done_later_changes_no_result(beam_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", "0")  # as on a GPU
    torch.manual_seed(1)
    model = Transformer(tiny_config(), VOCAB).eval()
    with torch.no_grad():
        model.embedding.weight[EOS_ID] *= 2.0  # so that outputs differ in length
    settings = load_config("base").decoding.model_copy(update={"max_extra_tokens": 9, "beam_size": beam_size})
    src, packing = pack([src for src, _ in draw_pairs()])
    found = []
    for steps in (1, 4, 7):
        monkeypatch.setitem(beam.CHECK_STEPS, "cpu", steps)
        found.append(beam_search(Ensemble([model]), src, packing, settings, vocab_size=VOCAB, n_best=beam_size))
    assert len({len(hypotheses[0].tokens) for hypotheses in found[0]}) > 1
    for later in found[1:]:
        assert [[one.tokens for one in hypotheses] for hypotheses in later] == [
            [one.tokens for one in hypotheses] for hypotheses in found[0]
        ]


def test_a_mask_that_is_added_hides_the_same_keys() -> None:
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 2, 4, 8), torch.randn(3, 2, 11, 8), torch.randn(3, 2, 11, 8)
    visible = torch.rand(3, 4, 11) < 0.5
    visible[..., 0] = True
    added = reference.additive_mask(visible, q.dtype)
    assert added.shape == (3, 4, 16)
    found = reference.attention_product(q, k, v, added[..., :11], causal=False)
    assert torch.equal(found, reference.attention_product(q, k, v, visible, causal=False))
    half = [part.bfloat16() for part in (q, k, v)]
    added = reference.additive_mask(visible, torch.bfloat16)[..., :11]
    found = reference.attention_product(*half, added, causal=False)
    assert torch.equal(found, reference.attention_product(*half, visible, causal=False))


def test_a_search_keeps_attention_from_cudnn() -> None:
    from dstransformer.decoding.devices import without_cudnn_attention

    before = torch.backends.cuda.cudnn_sdp_enabled()
    with without_cudnn_attention():
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == before
