"""Tests that need a CUDA device: compiled functions against the reference, the varlen backend, and training."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.models.compiled import FUNCTIONS, check
from support.models.packed import VOCAB, draw_pairs, model_logits, pack, tiny_config
from support.processes.forks import environment
from support.processes.launching import run_command
from support.training.runs import TINY, losses

from dstransformer.config import load_config
from dstransformer.data.packing import Packing
from dstransformer.decoding import beam_search
from dstransformer.model import Ensemble, Transformer, open_bundle, ops
from dstransformer.model.loss import Objective
from dstransformer.model.ops import Backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HALVES = [torch.bfloat16, torch.float16]

Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def cuda_pairs() -> Pairs:
    return [(src.cuda(), tgt.cuda()) for src, tgt in draw_pairs()]


def build_model(backend: Backend, **changes: float) -> Transformer:
    torch.manual_seed(1)
    return Transformer(tiny_config(**changes), VOCAB, backend).cuda()


def gradients(model: Transformer, pairs: Pairs) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss per target token of a packed batch, and the gradient of every weight in fp32, by name."""
    src, src_packing = pack([src for src, _ in pairs])
    tgt, tgt_packing = pack([tgt for _, tgt in pairs])
    sums = Objective(model, 0.1)(src, src_packing, tgt, tgt.roll(-1), tgt_packing)
    (sums.loss / len(tgt)).backward()
    found = {name: weight.grad.float() for name, weight in model.named_parameters() if weight.grad is not None}
    return float(sums.loss) / len(tgt), found


def worst_error(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest relative error of any gradient, by norm."""
    assert found.keys() == expected.keys()
    return max(float((found[name] - true).norm() / true.norm()) for name, true in expected.items())


@pytest.fixture
def no_waits() -> Iterator[None]:
    """Fail if the host waits for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_functions_compute_what_the_reference_does(name: str, dtype: torch.dtype) -> None:
    for rows in (64, 7, 9000, 300, 1, 0):
        check(name, dtype, rows, "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_operations_do_not_wait(dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    targets = torch.zeros(50, dtype=torch.int64, device="cuda")
    gain = torch.zeros(512, device="cuda", requires_grad=True)
    packing = Packing.from_lengths([30] * 500).pin_memory().to("cuda", non_blocking=True)

    def compute() -> None:
        logits = torch.zeros(50, 37_000, dtype=dtype, device="cuda")
        with torch.inference_mode():
            ops.best_pieces(logits, 2, 37_000, 8)
        ops.cross_entropy(logits, targets, 0.1, 1.0)
        ops.r_drop_cross_entropy((logits, logits.clone()), targets, 0.1, 5.0, 1.0)
        x = torch.zeros(15_000, 512, dtype=dtype, device="cuda", requires_grad=True)
        normed = ops.residual_norm(x, x, gain, gain, 1e-6, 0.1)
        attended = ops.attention(normed, None, packing, packing, ops.HeadShape(8, 20, 24, causal=True), 0.0, "auto")
        attended.sum().backward()
        ops.weight_gradient(logits, x.detach()[:50])

    compute()  # compiles
    request.getfixturevalue("no_waits")
    compute()


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_of_weights_are_in_fp32(dtype: torch.dtype) -> None:
    grad, x = (torch.randn(2, 25_000, 256, device="cuda") / 16).to(dtype).unbind()
    found = ops.weight_gradient(grad, x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), grad.double().t() @ x.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("changes", [{}, {"d_k": 16, "d_v": 16}, {"d_k": 4, "d_v": 16}], ids=["8", "16", "4-16"])
def test_varlen_equals_padded(dtype: torch.dtype, changes: dict[str, int]) -> None:
    pairs = cuda_pairs()
    padded = build_model("padded", **changes).eval()
    varlen = build_model("varlen", **changes).to(dtype).eval()
    expected = model_logits(padded, pairs)
    torch.testing.assert_close(model_logits(varlen, pairs).float(), expected, rtol=0.05, atol=0.1)
    half = padded.to(dtype)
    torch.testing.assert_close(model_logits(varlen, pairs), model_logits(half, pairs), rtol=0.02, atol=0.05)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("changes", [{}, {"d_k": 4, "d_v": 16}], ids=["8", "4-16"])
def test_varlen_gradients_match_padded(dtype: torch.dtype, changes: dict[str, int]) -> None:
    pairs = cuda_pairs()
    true_loss, true = gradients(build_model("padded", **changes), pairs)
    padded_loss, padded = gradients(build_model("padded", **changes).to(dtype), pairs)
    varlen_loss, varlen = gradients(build_model("varlen", **changes).to(dtype), pairs)
    assert varlen_loss == pytest.approx(true_loss, rel=0.01)
    assert varlen_loss == pytest.approx(padded_loss, rel=0.01)
    # About as close to fp32 as the padded backend in the same precision.
    assert worst_error(varlen, true) < 1.5 * worst_error(padded, true) + 0.02


@pytest.mark.parametrize("dtype", HALVES)
def test_dropout_is_the_same_with_both_backends(dtype: torch.dtype) -> None:
    found = []
    for backend in ("padded", "varlen"):
        model = build_model(backend, dropout=0.3).to(dtype)
        torch.manual_seed(7)
        found.append(gradients(model, cuda_pairs())[0])
    assert found[1] == pytest.approx(found[0], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["varlen", "padded"])
def test_gradients_of_compiled_layers_match_eager_ones(backend: Backend) -> None:
    pairs = cuda_pairs()
    true_loss, true = gradients(build_model("padded"), pairs)
    eager_loss, eager = gradients(build_model(backend).bfloat16(), pairs)
    model = build_model(backend).bfloat16()
    for layer in (*model.encoder, *model.decoder):
        layer.compile(dynamic=False)
    loss, compiled = gradients(model, pairs)
    assert loss == pytest.approx(true_loss, rel=0.01)
    assert loss == pytest.approx(eager_loss, rel=0.01)
    assert worst_error(compiled, true) < 1.5 * worst_error(eager, true) + 0.02


@pytest.mark.parametrize("backend", ["varlen", "padded"])
def test_filler_sentences_do_not_change_the_others(backend: Backend) -> None:
    pairs = cuda_pairs()
    filling = torch.zeros(6, dtype=torch.int64, device="cuda")
    nothing = filling[:0]
    model = build_model(backend, d_k=16, d_v=16).bfloat16()
    alone = model_logits(model, pairs)
    filled = model_logits(model, [*pairs, (filling, filling), (nothing, nothing), (nothing, nothing)])
    torch.testing.assert_close(filled[: len(alone)], alone, rtol=0.02, atol=0.05)
    filled[: len(alone)].sum().backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)


def test_translations_equal_those_on_a_cpu() -> None:
    sources = [src for src, _ in draw_pairs()]
    settings = load_config("base").decoding.model_copy(update={"max_extra_tokens": 5})
    model = build_model("padded").eval()
    found = []
    for device in ("cpu", "cuda"):
        src, packing = pack([source.to(device) for source in sources])
        outputs = beam_search(Ensemble([model.to(device)]), src, packing, settings, vocab_size=VOCAB)
        found.append([[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in outputs])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "fragments", [("zero1", "bf16"), ("zero1", "fp16"), ("zero2", "fp16"), ("zero3", "bf16"), ("zero1", "fp32")]
)
def test_training_reduces_the_loss(toy_corpus: Path, tmp_path: Path, fragments: tuple[str, str]) -> None:
    trace = train(toy_corpus, tmp_path / "run", fragments)
    assert trace[-1] < 0.8 * trace[0]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_both_backends_train_alike(toy_corpus: Path, tmp_path: Path, precision: str) -> None:
    padded, varlen = (
        train(toy_corpus, tmp_path / backend, ("zero1", precision), f"training.attention_backend={backend}")
        for backend in ("padded", "varlen")
    )
    assert varlen == pytest.approx(padded, rel=0.03)


def train(corpus: Path, run: Path, fragments: tuple[str, str], *changes: str) -> list[float]:
    """The losses of thirty updates on the GPU, in a new interpreter: forked processes see no GPU."""
    variables = environment()
    del variables["CUDA_VISIBLE_DEVICES"]
    variables |= {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ}
    options = ["--corpus", str(corpus), "--run", str(run), "--ds", *fragments]
    command = [sys.executable, "-m", "dstransformer", "train", "toy", *options, "--set", *TINY]
    done = run_command([*command, "training.max_updates=30", *changes], env=variables)
    assert done.returncode == 0, done.stderr
    assert open_bundle(run / "bundle").provenance["hardware"]["device"] == torch.cuda.get_device_name()
    return losses(run)
