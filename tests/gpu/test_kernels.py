"""The Triton kernels and flash attention on a CUDA device, against the reference in fp32 and fp64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.models.packed import VOCAB, draw_pairs, pack, tiny_config

from dstransformer.data.packing import Packing
from dstransformer.model import Transformer, ops
from dstransformer.model.ops import Backend

if TYPE_CHECKING:
    from support.models.gpu_sentences import Kind

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PRECISIONS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def checks() -> Any:
    pytest.importorskip("triton", reason="needs the package triton")
    from support.models import gpu_rows

    if ops.gpu_kernels_name(torch.device("cuda")) == "none":
        pytest.skip("needs compute capability 8.0 or more, and DST_GPU_KERNELS not 0")
    return gpu_rows


@pytest.fixture
def no_waits() -> Iterator[None]:
    """Fail if the host waits for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize(
    ("rows", "tokens", "pieces"), [(3000, 2900, 37_000), (500, 500, 40_960), (70, 69, 36_999), (1, 1, 17), (4, 0, 100)]
)
def test_cross_entropy(checks: Any, dtype: torch.dtype, rows: int, tokens: int, pieces: int) -> None:
    for scale in (1024.0 if dtype == torch.float16 else 1.0, None):
        checks.check_cross_entropy(dtype, rows, tokens, pieces, scale, "cuda")


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize(("rows", "pieces"), [(800, 37_000), (70, 36_999), (1, 17), (0, 40)])
def test_r_drop(checks: Any, dtype: torch.dtype, rows: int, pieces: int) -> None:
    for scale in (200.0 if dtype == torch.float16 else 1.0, None):
        checks.check_r_drop(dtype, rows, pieces, scale, "cuda")


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize(
    ("rows", "pieces", "first", "end", "count"),
    [(3000, 37_000, 2, 37_000, 8), (70, 36_999, 3, 36_990, 20), (5, 101, 0, 101, 64), (4, 37, 36, 37, 1)],
)
def test_best_pieces(checks: Any, dtype: torch.dtype, rows: int, pieces: int, first: int, end: int, count: int) -> None:
    checks.check_best_pieces(dtype, rows, pieces, first, end, count, "cuda")


@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize(("rows", "width"), [(25_000, 512), (9_001, 1024), (33, 100), (1, 33), (0, 64)])
def test_residual_norm(checks: Any, dtype: torch.dtype, rows: int, width: int, p: float) -> None:
    for weight_dtype in {dtype, torch.float32}:
        checks.check_residual_norm(dtype, weight_dtype, rows, width, p, "cuda")


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("kind", ["self", "causal", "memory"])
@pytest.mark.parametrize(("heads", "d_k", "d_v"), [(8, 64, 64), (16, 128, 96), (3, 5, 19), (2, 32, 1)])
def test_attention_in_short_sentences(
    checks: Any, dtype: torch.dtype, kind: Kind, heads: int, d_k: int, d_v: int
) -> None:
    from support.models.gpu_sentences import check_attention

    for lengths in ([1, 31, 32, 33, 70, 256], [*range(1, 65)] * 8, [5]):
        check_attention(dtype, kind, lengths, heads, d_k, d_v, "cuda")


def test_dropout_nan_and_search(checks: Any) -> None:
    checks.check_dropout("cuda")
    checks.check_nan_stays_in_its_row("cuda")
    checks.check_best_pieces_of_nan("cuda")
    checks.check_search("cuda")
    checks.check_compiled_layers("cuda")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", ["self", "memory"])
def test_attention_computed_again(checks: Any, kind: Kind, compiled: bool) -> None:
    from support.models.gpu_sentences import check_computed_again

    check_computed_again(kind, compiled, "cuda")


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_a_model_computes_the_same_with_the_kernels(checks: Any, precision: torch.dtype) -> None:
    checks.check_model(precision, "cuda")


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
def test_kernels_do_not_wait(checks: Any, no_waits: None, dtype: torch.dtype) -> None:
    logits = torch.zeros(50, 37_000, dtype=dtype, device="cuda")
    targets = torch.zeros(50, dtype=torch.int64, device="cuda")
    with torch.inference_mode():
        ops.best_pieces(logits.repeat(4, 1), 2, 37_000, 8)
    ops.cross_entropy(logits, targets, 0.1, 1.0)
    ops.r_drop_cross_entropy((logits, logits.clone()), targets, 0.1, 5.0, 1.0)
    x = torch.zeros(25_000, 512, dtype=dtype, device="cuda", requires_grad=True)
    gain = torch.zeros(512, device="cuda", requires_grad=True)
    normed = ops.residual_norm(x, x, gain, gain, 1e-6, 0.1)
    assert type(normed.grad_fn).__name__ == "_ResidualNormBackward"
    normed.sum().backward()
    ops.weight_gradient(logits, x.detach()[:50])
    packing = Packing.from_lengths([30] * 500).pin_memory().to("cuda", non_blocking=True)
    heads = ops.HeadShape(8, 20, 24, causal=True)
    attended = ops.attention(x[:15_000], None, packing, packing, heads, 0.0, "short")
    assert type(attended.grad_fn).__name__ == "_AttentionBackward"
    attended.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_weights_are_in_fp32(dtype: torch.dtype) -> None:
    grad, x = (torch.randn(2, 25_000, 256, device="cuda") / 16).to(dtype).unbind()
    found = ops.weight_gradient(grad, x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), grad.double().t() @ x.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("changes", [{}, {"d_k": 16, "d_v": 8}, {"d_k": 5, "d_v": 3}], ids=str)
def test_varlen_and_short_are_as_close_to_fp64_as_padded(dtype: torch.dtype, changes: dict[str, int]) -> None:
    pairs = draw_pairs()
    src, src_packing = pack([src.cuda() for src, _ in pairs])
    tgt, tgt_packing = pack([tgt.cuda() for _, tgt in pairs])

    def gradients(backend: Backend, kind: torch.dtype) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = Transformer(tiny_config(**changes), VOCAB, 0.1, backend).cuda().to(kind)
        loss = model(src, src_packing, tgt, tgt.roll(-1), tgt_packing).loss / len(tgt)
        return [grad.double() for grad in torch.autograd.grad(loss, list(model.parameters()))]

    exact = gradients("padded", torch.float64)
    errors = [
        max(float((found - true).norm() / true.norm()) for found, true in zip(gradients(b, dtype), exact, strict=True))
        for b in ("padded", "varlen", "short")
    ]
    assert max(errors[1:]) < 1.5 * errors[0] + 0.01
