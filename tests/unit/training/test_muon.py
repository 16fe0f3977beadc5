"""Muon against its formula in fp64, against PyTorch's, and which weights it updates."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from support.models.numerics import assert_near
from support.training.runs import TINY
from torch import Tensor

from dstransformer.config import Config, load_config
from dstransformer.distributed.launcher import Processes
from dstransformer.distributed.world import World
from dstransformer.model import Transformer
from dstransformer.training.muon import (
    IS_MUON,
    MOMENTUM,
    Exchange,
    Matrix,
    Muon,
    deal_matrices,
    hidden_matrices,
    orthogonalise,
)
from dstransformer.training.partition import Place

VOCABULARY = 50


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield World(Processes(0, 0, 1), torch.device("cpu"))
    dist.destroy_process_group()


def config(*changes: str) -> Config:
    return load_config("toy", [*TINY, "optimizer.name=muon", *changes])


def by_formula(matrix: Tensor) -> Tensor:
    """Jordan et al. (2024), in fp64: the iteration is on the singular values."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.square().sum().sqrt()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    scale: float = 0.2 * max(matrix.shape) ** 0.5
    return scale * (left * values) @ right


@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16), (1, 8), (64, 256)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2), (torch.float16, 2e-2)])
def test_the_update_is_that_of_the_formula(shape: tuple[int, int], dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(1)
    matrix = torch.randn(shape) * 1e-3
    found = orthogonalise(matrix, dtype)
    assert found.dtype == torch.float32
    assert_near(found, by_formula(matrix), tolerance)
    values = torch.linalg.svdvals(found) / (0.2 * max(shape) ** 0.5)
    assert float(values.max()) < 1.3
    assert float(values.median()) > 0.6


def test_a_gradient_of_zero_changes_nothing() -> None:
    assert not orthogonalise(torch.zeros(4, 6), torch.float32).any()


@pytest.mark.parametrize("changes", [(), ("model.encoder_layers=3", "model.d_v=8", "model.d_ff=48")])
def test_it_updates_the_matrices_of_the_layers_each_by_itself(changes: tuple[str, ...]) -> None:
    chosen = config(*changes).model
    model = Transformer(chosen, VOCABULARY)
    matrices = hidden_matrices(model)
    parameters = dict(model.named_parameters())
    layers = {name for name, weight in parameters.items() if name[:2] in ("en", "de") and weight.dim() == 2}
    assert {matrix.name for matrix in matrices} == layers
    assert "embedding.weight" not in layers
    for name, own in itertools.groupby(matrices, key=lambda matrix: matrix.name):
        of_parameter = list(own)
        assert len(of_parameter) == (3 if "qkv" in name else 2 if "kv" in name else 1)
        assert sum(matrix.elements for matrix in of_parameter) == parameters[name].numel()
    keys = chosen.num_heads * chosen.d_k
    assert Matrix("encoder.0.self_attention.qkv.weight", keys * chosen.d_model, keys, chosen.d_model) in matrices


@pytest.mark.parametrize(
    "changes", [("optimizer.muon_rate=0.5",), ("optimizer.weight_decay=0.1", "optimizer.momentum=0.8")]
)
def test_updates_are_those_of_pytorchs_muon_and_adamw(world: World, changes: tuple[str, ...]) -> None:
    values = config(*changes)
    torch.manual_seed(2)
    model = Transformer(values.model, VOCABULARY)
    expected = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    matrices = hidden_matrices(model)
    hidden = {matrix.name for matrix in matrices}
    cut = [expected[one.name].view(-1)[one.start : one.start + one.elements].view(one.rows, -1) for one in matrices]
    settings = values.optimizer
    theirs: list[torch.optim.Optimizer] = [
        torch.optim.Muon(
            [torch.nn.Parameter(view) for view in cut],
            lr=settings.muon_rate, weight_decay=settings.weight_decay, momentum=settings.momentum,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(
            [weight for name, weight in expected.items() if name not in hidden],
            lr=1.0, betas=(settings.beta1, settings.beta2), eps=settings.eps, weight_decay=settings.weight_decay,
        ),
    ]  # fmt: skip
    places = {name: Place(0, weight, 0, weight.numel()) for name, weight in model.named_parameters()}
    ours = Muon(model, settings, torch.bfloat16, world, lambda: places)
    for name in hidden:
        ours.state[model.get_parameter(name)][MOMENTUM] = torch.zeros_like(model.get_parameter(name))
    begin = {name: weight.clone() for name, weight in expected.items()}
    for group in ours.param_groups + [group for one in theirs for group in one.param_groups]:
        group["lr"] *= 0.01
    for _ in range(3):
        for name, weight in model.named_parameters():
            weight.grad = torch.randn_like(weight)
            expected[name].grad = weight.grad.clone()
        for view, one in zip(theirs[0].param_groups[0]["params"], matrices, strict=True):
            gradient = model.get_parameter(one.name).grad
            assert gradient is not None
            view.grad = gradient.view(-1)[one.start : one.start + one.elements].view(one.rows, -1).clone()
        for optimizer in (ours, *theirs):
            optimizer.step()
    for name, weight in model.named_parameters():
        found, wanted = weight.detach() - begin[name], expected[name] - begin[name]
        tolerance = 0.05 if name in hidden else 1e-4  # theirs rounds the norm to bf16, ours does not
        assert float((found - wanted).norm()) <= tolerance * float(wanted.norm())


def test_its_rate_is_a_factor_of_the_schedule(world: World) -> None:
    values = config("optimizer.muon_rate=0.25")
    groups = Muon(Transformer(values.model, VOCABULARY), values.optimizer, torch.float32, world, dict).param_groups
    assert [(group["lr"], bool(group.get(IS_MUON))) for group in groups] == [(1.0, False), (0.25, True)]


def test_matrices_are_dealt_so_that_ranks_have_about_as_much_to_do() -> None:
    costs = [9, 4, 4, 1, 9, 1]
    load = [0, 0]
    owners = deal_matrices(dict(enumerate(costs)), load)
    assert load == [14, 14]
    assert [sum(cost for number, cost in enumerate(costs) if owners[number] == rank) for rank in (0, 1)] == load
    assert deal_matrices({7: 3}, [2, 1, 0, 0]) == {7: 2}, "what earlier exchanges have dealt counts"


class Meeting:
    """Ranks that are threads of this process."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._barrier = threading.Barrier(ranks, timeout=60)
        self._said: list[Any] = [None] * ranks

    def say(self, rank: int, value: Any) -> list[Any]:
        """What all ranks say, in their order."""
        self._said[rank] = value
        self._barrier.wait()
        said = list(self._said)
        self._barrier.wait()
        return said


class Member:
    """What an :class:`Exchange` needs of ``World``, for a rank of a meeting."""

    device = torch.device("cpu")

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self.rank, self.world_size = meeting, rank, meeting.ranks

    def gather(self, value: Any) -> list[Any]:
        return self._meeting.say(self.rank, value)

    def exchange(self, values: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        parts = [every[self.rank] for every in self._meeting.say(self.rank, torch.split(values, list(given)))]
        assert [len(part) for part in parts] == list(taken)
        return torch.cat(parts)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("partitioned", [True, False])
def test_matrices_meet_whole_on_any_number_of_ranks(ranks: int, *, partitioned: bool) -> None:
    """Odd sizes: a matrix lies on three ranks, and some rank orthogonalises none, or holds only padding."""
    torch.manual_seed(3)
    sizes = [(5, 3), (2, 7), (1, 1), (9, 4)]
    whole = torch.randn(sum(rows * columns for rows, columns in sizes))
    matrices, places, start = [], [], 0
    for number, (rows, columns) in enumerate(sizes):
        matrices.append(Matrix(str(number), 0, rows, columns))
        places.append((str(number), start, rows * columns))
        start += rows * columns
    share = -(-len(whole) // ranks) + 2 if partitioned else len(whole)  # the last rank holds less, or nothing
    meeting = Meeting(ranks)

    def run(rank: int) -> Tensor:
        first = min(rank * share, len(whole)) if partitioned else 0
        end = min(first + share, len(whole))
        own = {
            name: Place(max(first - at, 0), whole, max(at, first), min(end, at + size) - max(at, first))
            for name, at, size in places
            if max(at, first) < min(end, at + size)
        }
        exchange = Exchange(matrices, own, cast(World, Member(meeting, rank)), [0] * ranks)
        parts = [part.of(whole).clone() for part in exchange.parts]
        found = torch.zeros_like(whole)
        for part, result in zip(exchange.parts, exchange.map(lambda one: one / one.norm(), parts), strict=True):
            part.of(found).copy_(result)
        assert exchange.parts or partitioned
        return found

    with ThreadPoolExecutor(ranks) as pool:
        results = list(pool.map(run, range(ranks)))
    expected = torch.cat([one / one.norm() for one in torch.split(whole, [size for _, _, size in places])])
    found = torch.stack(results).sum(0) if partitioned else results[-1]
    torch.testing.assert_close(found, expected)
