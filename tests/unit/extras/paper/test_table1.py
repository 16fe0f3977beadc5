"""``dst table1``: the formulas against graphs and against what PyTorch computes, what it prints and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from dstransformer.cli import main
from dstransformer.extras.paper import table1
from dstransformer.extras.paper.table1 import (
    LAYER_TYPES,
    LayerType,
    Size,
    dilated_path_length,
    restricted_attention,
    restricted_path_length,
    window,
)

SELF_ATTENTION, RECURRENT, CONVOLUTIONAL, RESTRICTED = LAYER_TYPES

Sources = Callable[[int, int], Iterable[int]]  # (layer, position) -> the positions of the layer below that it reads


def layers_until_connected(n: int, sources: Sources, pairs: Iterable[tuple[int, int]]) -> int:
    """The layers until each pair's output depends on its input, by breadth-first search from the outputs."""
    return max(_height(sources, n, start, end) for start, end in pairs)


def _height(sources: Sources, n: int, start: int, end: int) -> int:
    height = 1
    while start not in _inputs_of(sources, n, height, end):
        height += 1
    return height


def _inputs_of(sources: Sources, n: int, height: int, end: int) -> set[int]:
    """The inputs that an output of a stack of this height depends on."""
    reached = {end}
    for layer in reversed(range(height)):
        reached = {low for high in reached for low in sources(layer, high) if 0 <= low < n}
    return reached


@pytest.mark.parametrize("r", [3, 4, 5, 8])
@pytest.mark.parametrize("n", [2, 3, 7, 12])
def test_restricted_path_length_is_that_of_its_graph(n: int, r: int) -> None:
    before, after = window(r)
    assert before + after + 1 == r
    pairs = [(start, end) for start in range(n) for end in range(n)]
    found = layers_until_connected(n, lambda _, high: range(high - before, high + after + 1), pairs)
    assert restricted_path_length(n, r) == found


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("n", [2, 3, 8, 9, 10, 25, 26, 28])
def test_convolutional_path_length_is_that_of_its_graph(n: int, k: int) -> None:
    found = layers_until_connected(n, lambda layer, high: range(high, high - k * k**layer, -(k**layer)), [(0, n - 1)])
    assert dilated_path_length(n, k) == found


@pytest.mark.parametrize("size", [Size(12, 8, 3, 4), Size(20, 6, 5, 4)])
@pytest.mark.parametrize("kind", LAYER_TYPES, ids=lambda kind: kind.name)
def test_multiply_adds_are_those_that_pytorch_computes(kind: LayerType, size: Size) -> None:
    layer, x = kind.build(size), torch.randn(1, size.n, size.d)
    with FlopCounterMode(display=False) as counter:
        assert layer(x).shape == x.shape
    masked = (2 * size.r - 1) / size.r if kind is RESTRICTED else 1  # what blocks compute beyond the windows
    assert counter.get_total_flops() == 2 * kind.multiply_adds(size) * masked


def test_attention_is_equation_1() -> None:
    x = torch.randn(2, 9, 6)
    torch.testing.assert_close(table1.attention(x), F.scaled_dot_product_attention(x, x, x))


@pytest.mark.parametrize("r", [3, 4, 8, 33])
@pytest.mark.parametrize("n", [1, 5, 31, 64])
def test_restricted_attention_is_full_attention_with_a_mask(n: int, r: int) -> None:
    x = torch.randn(2, n, 6, dtype=torch.float64)
    before, after = window(r)
    offset = torch.arange(n)[None, :] - torch.arange(n)[:, None]  # key minus query
    mask = (offset >= -before) & (offset <= after)
    torch.testing.assert_close(restricted_attention(x, r), F.scaled_dot_product_attention(x, x, x, attn_mask=mask))


@pytest.mark.parametrize(("kind", "reach"), [(RECURRENT, 7), (CONVOLUTIONAL, 2)], ids=["recurrent", "convolutional"])
def test_recurrence_and_convolution_only_look_back(kind: LayerType, reach: int) -> None:
    x = torch.randn(1, 8, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(kind.build(Size(8, 4, 3, 4))(x)[0, 7].sum(), x)
    assert (gradient[0].abs().sum(1) > 0).tolist() == [7 - position <= reach for position in range(8)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table1, "MEASURED_SECONDS", 1e-3)


@pytest.mark.usefixtures("quick")
def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table1", "--device", "cpu", "--length", "16", "--width", "8", "--neighbourhood", "4"]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [row[0] for row in rows[2:]] == [f"| {kind.name}" for kind in LAYER_TYPES]
    assert rows[2][1:5] == ["O(n²·d)", "4,096", "O(1): 1", "O(1): 1"]
    assert rows[3][1:5] == ["O(n·d²)", "2,048", "O(n): 16", "O(n): 16"]
    assert rows[4][1:5] == ["O(k·n·d²)", "3,072", "O(1): 1", "O(log_k(n)): 3"]
    assert rows[5][1:5] == ["O(r·n·d)", "1,024", "O(1): 1", "O(n/r): 15"]
    assert all(float(row[5].split(" ms")[0]) > 0 for row in rows[2:])


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["table1", *arguments]) == 2
    output, errors = capsys.readouterr()
    assert (output, errors.count("\n")) == ("", 1)
    return errors


@pytest.mark.parametrize(("arguments", "named"), [
    ("--length 1", "--length 1"),
    ("--width 0", "--width 0"),
    ("--length x", "--length"),
    ("--length 16 --neighbourhood 32", "--neighbourhood 32"),
    ("--neighbourhood 2", "--neighbourhood 2"),
    ("--kernel 1", "--kernel 1"),
    ("--kernel 999", "--kernel 999"),
    ("--device gpu", "'gpu'"),
    ("--device meta", "'meta'"),
    ("--length 10000000", "--length 10,000,000"),
    ("--width 10000000", "--width 10,000,000"),
])  # fmt: skip
def test_invalid_arguments_are_refused(arguments: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    device = [] if "--device" in arguments else ["--device", "cpu"]
    assert named in refused(capsys, *device, *arguments.split())


def test_running_out_of_memory_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def too_much(_: Size) -> table1.Layer:
        return lambda _: torch.empty(2**50, dtype=torch.uint8)

    monkeypatch.setattr(table1, "LAYER_TYPES", [replace(kind, build=too_much) for kind in LAYER_TYPES])
    assert "memory for self-attention at --length 512" in refused(capsys, "--device", "cpu")
