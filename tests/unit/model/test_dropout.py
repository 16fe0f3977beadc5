from __future__ import annotations

import pytest
import torch

from dstransformer.model.ops.reference import keep_mask
from dstransformer.model.transformer import Dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.75])
def test_the_mask_keeps_the_right_share_and_the_mean(p: float) -> None:
    torch.manual_seed(0)
    mask = keep_mask(torch.Size((1000, 1001)), p, torch.float32)
    assert mask.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])
    assert (mask == 0).float().mean().item() == pytest.approx(p, abs=0.002)
    for shift in (1, 2, 3, 4):  # neighbours from one random word are independent too
        dropped = (mask == 0).flatten()
        both = (dropped[:-shift] & dropped[shift:]).float().mean().item()
        assert both == pytest.approx(p * p, abs=0.003)


def test_it_follows_the_seed_and_is_off_in_eval_mode() -> None:
    dropout, x = Dropout(0.5), torch.ones(64)
    torch.manual_seed(7)
    first = dropout(x)
    torch.manual_seed(7)
    assert torch.equal(first, dropout(x))
    assert torch.equal(dropout.eval()(x), x)


def test_the_gradient_is_masked_like_the_value() -> None:
    x = torch.ones(64, requires_grad=True)
    y = Dropout(0.5)(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
