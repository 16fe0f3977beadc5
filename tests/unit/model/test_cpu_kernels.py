"""The C++ kernels compute what PyTorch does."""

from __future__ import annotations

import math

import pytest
import torch
from support.models.numerics import PRECISIONS, assert_near, draw, exact
from support.models.packed import VOCAB, model_loss, tiny_config
from torch import Tensor
from torch.nn import functional as F

from dstransformer.data.packing import Packing, fill_rows
from dstransformer.model import Transformer, ops
from dstransformer.model.ops import cpu, library, reference

from_lengths = Packing.from_lengths

LENGTHS, MEMORY_LENGTHS = [1, 5, 17, 33, 16, 40], [3, 8, 16, 50, 2, 1]


@pytest.fixture(autouse=True)
def _compiled() -> None:
    assert library.kernels() is not None


def attend(q: Tensor, k: Tensor, v: Tensor, packing: Packing, keys: Packing, shape: ops.HeadShape) -> Tensor:
    """Attention by PyTorch, sentence by sentence."""
    outputs = []
    for part, key_part in zip(packing.cu.int().unfold(0, 2, 1), keys.cu.int().unfold(0, 2, 1), strict=True):
        rows, key_rows = slice(*part.tolist()), slice(*key_part.tolist())
        heads = [
            tensor[chosen].view(-1, shape.heads, width).transpose(0, 1)
            for tensor, chosen, width in ((q, rows, shape.d_k), (k, key_rows, shape.d_k), (v, key_rows, shape.d_v))
        ]
        out = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=shape.causal)
        outputs.append(out.transpose(0, 1).flatten(1))
    return torch.cat(outputs)


def check_attention(
    given: list[Tensor], packing: Packing, keys: Packing, shape: ops.HeadShape, tolerance: float
) -> None:
    """Compare results and gradients; ``given`` is one tensor of queries, keys and values, or has queries apart."""
    widths = [shape.heads * shape.d_k, shape.heads * shape.d_k, shape.heads * shape.d_v]
    out = cpu.attention(given[0], given[1] if len(given) > 1 else None, packing, keys, shape)
    grad = torch.randn_like(out)
    out.backward(grad)
    wide = [exact(tensor) for tensor in given]
    heads = wide[0].split(widths, 1) if len(given) == 1 else (wide[0], *wide[1].split(widths[1:], 1))
    expected = attend(*heads, packing, keys, shape)
    expected.backward(grad.double())
    assert_near(out, expected, tolerance)
    for tensor, wanted in zip(given, wide, strict=True):
        assert_near(tensor.grad, wanted.grad, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("widths", [(4, 16, 16), (2, 4, 12), (8, 64, 64), (3, 20, 33)], ids=str)
@pytest.mark.parametrize("kind", ["own", "causal", "memory"])
def test_attention(dtype: torch.dtype, tolerance: float, widths: tuple[int, int, int], kind: str) -> None:
    shape, packing = ops.HeadShape(*widths, kind == "causal"), from_lengths(LENGTHS)
    keys = from_lengths(MEMORY_LENGTHS) if kind == "memory" else packing
    key_width, value_width = shape.heads * shape.d_k, shape.heads * shape.d_v
    if kind == "memory":
        sizes = [(packing.tokens, key_width), (keys.tokens, key_width + value_width)]
    else:
        sizes = [(packing.tokens, 2 * key_width + value_width)]
    check_attention([draw(*size, dtype=dtype) for size in sizes], packing, keys, shape, tolerance)


@pytest.mark.parametrize("causal", [False, True])
def test_long_sentences_and_more_threads_than_sentences(causal: bool) -> None:
    shape, packing = ops.HeadShape(3, 16, 16, causal), from_lengths([700, 256, 2])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(9)
        check_attention([draw(packing.tokens, 144, dtype=torch.float32)], packing, packing, shape, 1e-5)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("over_memory", [False, True])
def test_attention_ignores_filler_and_leaves_it_zero(over_memory: bool) -> None:
    shape, packing, keys = ops.HeadShape(2, 16, 16, False), from_lengths([3, 16, 2]), from_lengths([7, 1, 33])
    tensors = [(packing, draw(packing.tokens, 32 if over_memory else 96, dtype=torch.float32))]
    if over_memory:
        tensors.append((keys, draw(keys.tokens, 64, dtype=torch.float32)))
    else:
        keys = packing
    assert all(part.rows > part.tokens for part in (packing, keys))
    filled = [F.pad(tensor.detach(), (0, 0, 0, part.rows - part.tokens), value=math.nan) for part, tensor in tensors]
    for longer in filled:
        longer.requires_grad_()

    def attended(parts: list[Tensor]) -> Tensor:
        return cpu.attention(parts[0], parts[1] if over_memory else None, packing, keys, shape)

    expected, out = attended([tensor for _, tensor in tensors]), attended(filled)
    grad = torch.randn_like(expected)
    expected.backward(grad)
    out.backward(fill_rows(grad, packing.rows))
    assert torch.equal(out, fill_rows(expected, packing.rows))
    for (part, tensor), longer in zip(tensors, filled, strict=True):
        assert longer.grad is not None
        assert tensor.grad is not None
        assert torch.equal(longer.grad, fill_rows(tensor.grad, part.rows))


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_residual_norm(dtype: torch.dtype, tolerance: float, dropout: float) -> None:
    tensors = [draw(300, 64, dtype=dtype), draw(300, 64, dtype=dtype), draw(64, dtype=dtype), draw(64, dtype=dtype)]
    out = cpu.residual_norm(*tensors, 1e-6, dropout)
    grad = torch.randn_like(out)
    out.backward(grad)
    x, y, gain, bias = map(exact, tensors)
    assert tensors[1].grad is not None
    kept = (tensors[1].grad != 0).double()  # the gradient has the same mask as the output
    expected = F.layer_norm(x + y * kept / (1 - dropout), (64,), gain, bias, 1e-6)
    expected.backward(grad.double())
    assert_near(out, expected, tolerance)
    for actual, wanted in zip(tensors, (x, y, gain, bias), strict=True):
        assert_near(actual.grad, wanted.grad, tolerance)


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_the_dropout_mask_has_the_given_rate_and_follows_the_seed(dropout: float) -> None:
    def masks(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        drawn = []
        for _ in range(2):
            x, y = torch.randn(2000, 512), torch.randn(2000, 512).requires_grad_()
            cpu.residual_norm(x, y, torch.ones(512), torch.zeros(512), 1e-6, dropout).backward(x)
            assert y.grad is not None
            drawn.append(y.grad != 0)
        return drawn

    first, second = masks(1)
    for mask in (first, second):
        assert abs(float(mask.double().mean()) - (1 - dropout)) < 5 * (dropout * (1 - dropout) / mask.numel()) ** 0.5
        assert abs(float(mask.double().mean(0).std()) - (dropout * (1 - dropout) / 2000) ** 0.5) < 1e-3
    assert abs(float((first & second).double().mean()) - (1 - dropout) ** 2) < 2e-3
    assert abs(float((first[:, 1:] & first[:, :-1]).double().mean()) - (1 - dropout) ** 2) < 2e-3
    assert torch.equal(torch.stack(masks(1)), torch.stack((first, second)))
    assert not torch.equal(masks(2)[0], first)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("pieces", [37, 50, 8000])
def test_cross_entropy(dtype: torch.dtype, tolerance: float, pieces: int) -> None:
    logits, targets = (torch.randn(70, pieces) * 3).to(dtype), torch.randint(0, pieces, (70,))
    wide = exact(logits)
    loss, nll = cpu.cross_entropy_(logits, targets, 0.1)
    expected = F.cross_entropy(wide, targets, reduction="none", label_smoothing=0.1)
    expected.sum().backward()
    assert_near(loss, expected, 1e-5)
    assert_near(nll, F.cross_entropy(wide, targets, reduction="none"), 1e-5)
    assert_near(logits, wide.grad, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("pieces", [37, 50, 8000])
def test_r_drop_cross_entropy(dtype: torch.dtype, tolerance: float, pieces: int) -> None:
    first, second = ((torch.randn(70, pieces) * 3 + shift).to(dtype) for shift in (0, 20))
    targets = torch.randint(0, pieces, (70,))
    wide = (first.float(), second.float())
    expected_loss, expected_nll, expected = reference.r_drop_cross_entropy(*wide, targets, 0.1, 5.0, 1.0)
    loss, nll = cpu.r_drop_cross_entropy_((first, second), targets, 0.1, 5.0)
    assert_near(torch.stack((loss.sum(), nll.sum())), torch.stack((expected_loss, expected_nll)), 1e-5)
    assert expected is not None
    for gradient, wanted in zip((first, second), expected, strict=True):
        assert_near(gradient, wanted, tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_propagates(dtype: torch.dtype) -> None:
    broken = torch.full((4, 64), float("nan"), dtype=dtype)
    sound = torch.ones(4, 64, dtype=dtype)
    normed = cpu.residual_norm(broken, sound, sound[0], sound[0], 1e-6, 0.1)
    attended = cpu.attention(broken, None, from_lengths([4]), from_lengths([4]), ops.HeadShape(2, 8, 16, True))
    targets, passes = torch.zeros(4, dtype=torch.long), (broken.clone(), sound.clone())
    loss, nll = cpu.cross_entropy_(broken, targets, 0.1)
    found = (normed, attended, loss, nll, broken, *cpu.r_drop_cross_entropy_(passes, targets, 0.1, 5.0), *passes)
    assert torch.stack([tensor.isnan().all() for tensor in found]).all()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_model_trains_alike_with_and_without_kernels(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Transformer(tiny_config(d_model=32, dropout=0.0, norm=norm), VOCAB)

    def compute() -> tuple[Tensor, list[Tensor]]:
        loss = model_loss(model)
        return loss, list(torch.autograd.grad(loss, list(model.parameters())))

    with_kernels = compute()
    monkeypatch.setenv("DST_CPU_KERNELS", "0")
    torch.testing.assert_close(with_kernels, compute(), rtol=2e-4, atol=2e-4)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    shape, packing = ops.HeadShape(4, 16, 16, True), from_lengths(LENGTHS)
    qkv, logits = torch.randn(packing.tokens, 192), torch.randn(40, 1000)
    targets = torch.randint(0, 1000, (40,))

    def compute(threads: int) -> tuple[Tensor, ...]:
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        own = logits.clone()
        normed = cpu.residual_norm(qkv, qkv, torch.ones(192), torch.zeros(192), 1e-6, 0.1)
        return (
            normed,
            cpu.attention(qkv, None, packing, packing, shape),
            *cpu.cross_entropy_(own, targets, 0.1),
            own,
            *cpu.r_drop_cross_entropy_((logits.clone(), own.clone()), targets, 0.1, 5.0),
        )

    before = torch.get_num_threads()
    try:
        for one, three in zip(compute(1), compute(3), strict=True):
            assert torch.equal(one, three)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("pieces", "first", "end"), [(8000, 3, 8000), (101, 3, 97), (40, 17, 33)])
def test_best_pieces(dtype: torch.dtype, pieces: int, first: int, end: int) -> None:
    logits = (torch.stack([torch.randperm(pieces) for _ in range(37)]) * (8 / pieces)).to(dtype)
    best, places, log_mass = cpu.best_pieces(logits, first, end, 8)
    assert torch.equal(best, logits[:, first:end].float().topk(8).values)
    assert torch.equal(logits.float().gather(1, places), best)
    assert all(len(set(row)) == 8 and first <= min(row) and max(row) < end for row in places.tolist())
    torch.testing.assert_close(log_mass, logits.float().logsumexp(1))


def test_ties_go_to_the_first_pieces() -> None:
    best, places, _ = cpu.best_pieces(torch.zeros(1, 100), 5, 100, 4)
    assert places.tolist() == [[5, 6, 7, 8]]
    assert best.tolist() == [[0.0] * 4]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("heads", "d_k", "d_v"), [(4, 16, 16), (2, 4, 12), (8, 64, 64), (3, 20, 33)])
def test_a_row_attends_to_its_path(heads: int, d_k: int, d_v: int, dtype: torch.dtype, tolerance: float) -> None:
    shape = ops.HeadShape(heads, d_k, d_v, True)
    counts = [3, 7, 5, 9, *[6] * 16, 8]
    past = [torch.randn(count, heads * (2 * d_k + d_v)).to(dtype) for count in counts]
    path = torch.stack([torch.randint(count, (8,)) for count in counts[:-1]] + [torch.arange(8)], dim=1).int()
    out = cpu.attend_path(past, path, shape)
    for row, steps in enumerate(path.tolist()):
        on_path = torch.stack([position[step] for position, step in zip(past, steps, strict=True)]).float()
        widths = [heads * d_k, heads * d_k, heads * d_v]
        q, k, v = (part.unflatten(1, (heads, -1)).transpose(0, 1) for part in on_path.split(widths, dim=1))
        expected = F.scaled_dot_product_attention(q[:, -1:], k, v).flatten()
        torch.testing.assert_close(out[row].float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("heads", "d_k", "d_v"), [(4, 16, 16), (2, 4, 12), (8, 64, 64), (3, 20, 33)])
def test_rows_attend_to_the_memory_of_their_sentence(
    heads: int, d_k: int, d_v: int, dtype: torch.dtype, tolerance: float
) -> None:
    shape = ops.HeadShape(heads, d_k, d_v, False)
    memory = torch.randn(30, heads * (d_k + d_v)).to(dtype)
    queries = torch.randn(7, heads * d_k).to(dtype)
    sentences = [(range(1), 4, 21), (range(1, 5), 21, 22), (range(5, 7), 25, 30)]
    row_cu, begins, ends = (torch.tensor(part, dtype=torch.int32) for part in ([0, 1, 5, 7], [4, 21, 25], [21, 22, 30]))
    out = cpu.attend_memory(queries, memory, row_cu, begins, ends, shape)
    for rows, begin, end in sentences:
        keys, values = memory[begin:end].float().split([heads * d_k, heads * d_v], dim=1)
        q = queries[rows.start : rows.stop].float()
        q, k, v = (part.unflatten(1, (heads, -1)).transpose(0, 1) for part in (q, keys, values))
        expected = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
        torch.testing.assert_close(out[rows.start : rows.stop].float(), expected, rtol=tolerance, atol=tolerance)
