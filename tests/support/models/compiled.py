"""The functions of the reference that PyTorch compiles for a GPU, each compared with the reference as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dstransformer.model import ops
from dstransformer.model.ops import reference

WIDTH, PIECES = 48, 41

#: The largest error of a result, over its largest value.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1, device: str = "cpu") -> Tensor:
    """Normal numbers, the same at each call and in each precision."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().to(device, dtype)


def draw_targets(rows: int, device: str = "cpu") -> Tensor:
    """Pieces, the same at each call."""
    return torch.randint(PIECES, (rows,), generator=torch.Generator().manual_seed(rows)).to(device)


def differentiate(call: Callable[..., Tensor], tensors: Sequence[Tensor], *others: Any) -> list[Tensor]:
    """The result of a function, and the gradients of its tensors."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    out = call(*leaves, *others)
    return [
        out.detach(),
        *torch.autograd.grad(out, leaves, draw(*out.shape, dtype=out.dtype, seed=2, device=str(out.device))),
    ]


def flat(found: Any) -> list[Tensor]:
    """The tensors of a result."""
    return [leaf for leaf in tree_leaves(found) if leaf is not None]


def _norm(module: Any, dtype: torch.dtype, rows: int, device: str) -> list[Tensor]:
    x, y = (draw(rows, WIDTH, dtype=dtype, seed=seed, device=device) for seed in (3, 4))
    gain, bias = (draw(WIDTH, dtype=dtype, seed=seed, device=device) for seed in (5, 6))
    return differentiate(module.residual_norm, (x, y, gain, bias), 1e-6, 0.0)


def _activation(module: Any, dtype: torch.dtype, rows: int, device: str) -> list[Tensor]:
    """A linear layer with weights in fp32; its product is not compiled."""
    x, weight, bias = draw(rows, 16, dtype=dtype, device=device), draw(WIDTH, 16, device=device), draw(WIDTH, seed=5)

    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return reference.bias_activation(reference.linear(x, weight, None), bias, "gelu")

    def dispatched(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.linear(x, weight, bias, activation="gelu")

    return differentiate(dispatched if module is ops else plain, (x, weight, bias.to(device)))


def _loss(module: Any, dtype: torch.dtype, rows: int, device: str) -> list[Tensor]:
    logits = 4 * draw(rows, PIECES, dtype=dtype, device=device)
    return flat(module.cross_entropy(logits, draw_targets(rows, device), 0.1, 8.0))


def _r_drop(module: Any, dtype: torch.dtype, rows: int, device: str) -> list[Tensor]:
    logits = tuple(4 * draw(rows, PIECES, dtype=dtype, seed=seed, device=device) for seed in (6, 7))
    given = (logits,) if module is ops else logits
    return flat(module.r_drop_cross_entropy(*given, draw_targets(rows, device), 0.1, 5.0, 8.0))


def _best(module: Any, dtype: torch.dtype, rows: int, device: str) -> list[Tensor]:
    with torch.inference_mode():
        logits = draw(rows, PIECES, dtype=dtype, device=device)
        best, pieces, log_sums = module.best_pieces(logits, 2, PIECES, 8)
        assert torch.equal(logits.gather(1, pieces).float(), best), "of equal pieces, any"
    return [best, log_sums]


#: Each function, called through the face of the operations or as the reference has it.
FUNCTIONS: dict[str, Callable[[Any, torch.dtype, int, str], list[Tensor]]] = {
    "dropout, residual and norm": _norm,
    "bias and activation": _activation,
    "loss": _loss,
    "R-Drop": _r_drop,
    "best pieces": _best,
}


def check(name: str, dtype: torch.dtype, rows: int, device: str = "cpu") -> None:
    """Compare the results of a function, and its gradients if it has any, with those of the reference in fp32."""
    function = FUNCTIONS[name]
    expected = function(reference, torch.float32, rows, device)
    for found, exact in zip(function(ops, dtype, rows, device), expected, strict=True):
        atol = TOLERANCES[dtype] * float(exact.abs().max()) if rows else 0.0
        torch.testing.assert_close(found.float(), exact, rtol=0.0, atol=atol)
