"""Muon (Jordan et al., 2024) for the matrices of the layers, with Adam for all other weights.

Muon replaces the momentum ``M`` of a matrix by the nearest matrix whose singular values are all about 1:
``U V^T`` of ``M = U S V^T``. Its update is as large as Adam's, so that both take the same learning rate (Liu et al.,
2025, equation 4).

The momentum is elementwise, so each rank keeps that of the elements it updates. To orthogonalise, a rank needs whole
matrices: the ranks send each other what they hold of them, and each rank computes its share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dstransformer.config.schema import OptimizerConfig
from dstransformer.distributed.world import World
from dstransformer.model.transformer import Linear
from dstransformer.training.partition import Place

#: Coefficients of an iteration, the number of iterations, and the least norm that is divided by (Jordan et al., 2024).
COEFFICIENTS, ITERATIONS, MIN_NORM = (3.4445, -4.7750, 2.0315), 5, 1e-7

#: The moment of a matrix.
MOMENTUM = "momentum"

#: Marks the parameter group of the matrices.
IS_MUON = "is_muon"

#: The root mean square of Adam's updates, relative to the learning rate (Liu et al., 2025, section 2.2).
ADAM_RMS = 0.2


def orthogonalise(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """``0.2 sqrt(max(rows, columns)) U V^T`` of ``U S V^T``, about: in place of 1, singular values are 0.7 to 1.2.

    Five Newton-Schulz iterations ``X <- a X + (b A + c A^2) X`` with ``A = X X^T``, from ``X = M / ||M||``.

    Args:
        matrix: ``(rows, columns)`` in fp32.
        dtype: The precision of the iterations.

    Returns:
        ``(rows, columns)`` in fp32.
    """
    a, b, c = COEFFICIENTS
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = (wide / wide.norm().clamp(min=MIN_NORM)).to(dtype)
    for _ in range(ITERATIONS):
        product = x @ x.T
        x = torch.addmm(x, torch.addmm(product, product, product, beta=b, alpha=c), x, beta=a)
    scaled: Tensor = x.float() * (ADAM_RMS * math.sqrt(max(matrix.shape)))
    return scaled if wide is matrix else scaled.T


class Matrix(NamedTuple):
    """A matrix that Muon updates: rows of a parameter, all of them or those of one projection.

    Attributes:
        name: The parameter.
        start: Its first element in the flattened parameter.
        rows: Number of rows.
        columns: Number of columns.
    """

    name: str
    start: int
    rows: int
    columns: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.rows * self.columns

    @property
    def cost(self) -> int:
        """Multiplications of an iteration."""
        short = min(self.rows, self.columns)
        return self.elements * 2 * short + short**3


def hidden_matrices(model: nn.Module) -> list[Matrix]:
    """The matrices of the layers: projections, each by itself, and feed-forward networks.

    Embeddings, the matrix before the softmax, norms and biases are not among them.
    """
    matrices = []
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            start, columns = 0, module.in_features
            for rows in module.projections:
                matrices.append(Matrix(f"{name}.weight", start, rows, columns))
                start += rows * columns
    return matrices


class Piece(NamedTuple):
    """Elements of a matrix from ``start`` on, and the number of the matrix."""

    matrix: int
    start: int
    elements: int


class Exchange:
    """Computes with whole matrices of which each rank holds pieces. Building it is collective.

    Args:
        matrices: All matrices.
        places: Where the parts of parameters are that this rank holds, by name.
        world: The process group.
        load: What earlier exchanges gave each rank to compute; this one's share is added. The same on all ranks.

    Attributes:
        parts: Where this rank's pieces are.
    """

    def __init__(self, matrices: Sequence[Matrix], places: Mapping[str, Place], world: World, load: list[int]) -> None:
        self._matrices, self._world = matrices, world
        held = list(_iter_pieces(matrices, places))
        pieces = [piece for piece, _ in held]
        by_rank: list[list[Piece]] = [pieces] if world.world_size == 1 else world.gather(pieces)
        costs = {piece.matrix: matrices[piece.matrix].cost for piece in chain(*by_rank)}
        owners = deal_matrices(costs, load)
        held.sort(key=lambda entry: owners[entry[0].matrix])
        self._held = [piece for piece, _ in held]
        self.parts = [part for _, part in held]
        # By rank, what it holds of this rank's matrices, and what this rank holds of its matrices.
        ranks = range(world.world_size)
        self._received = [[piece for piece in by_rank[rank] if owners[piece.matrix] == world.rank] for rank in ranks]
        self._sent = [[piece for piece in self._held if owners[piece.matrix] == rank] for rank in ranks]
        self._is_replicated = all(pieces == by_rank[0] for pieces in by_rank)

    def map(self, compute: Callable[[Tensor], Tensor], parts: Iterable[Tensor]) -> Iterator[Tensor]:
        """Compute with each matrix on one rank. Collective.

        Args:
            compute: The function, from a matrix to one of its shape.
            parts: The elements of each of :attr:`parts`.

        Returns:
            An iterator over the results for each of them.
        """
        if self._world.world_size == 1:
            for piece, part in zip(self._held, parts, strict=True):
                matrix = self._matrices[piece.matrix]
                yield compute(part.view(matrix.rows, matrix.columns)).reshape(-1)
            return
        sizes = [_size(pieces) for pieces in self._sent]
        none = torch.empty(0, device=self._world.device)
        flat = torch.cat([none, *parts])
        if self._is_replicated:  # without ZeRO
            received, arrived = self._received[self._world.rank], torch.split(flat, sizes)[self._world.rank]
        else:
            received = list(chain(*self._received))
            arrived = self._world.exchange(flat, sizes, [_size(pieces) for pieces in self._received])
            del flat  # memory is scarce while all gradients are there
        results = self._compute(compute, received, arrived)
        flat = arrived = none
        returned = torch.cat([none, *(_cut(results[piece.matrix], piece) for piece in chain(*self._received))])
        del results
        back = self._world.exchange(returned, [_size(pieces) for pieces in self._received], sizes)
        yield from torch.split(back, [piece.elements for piece in self._held])

    def _compute(
        self, compute: Callable[[Tensor], Tensor], pieces: Sequence[Piece], elements: Tensor
    ) -> Mapping[int, Tensor]:
        """The results for this rank's matrices by number, from the elements of their pieces."""
        matrices: dict[int, Tensor] = {}
        for piece, part in zip(pieces, torch.split(elements, [piece.elements for piece in pieces]), strict=True):
            matrix = self._matrices[piece.matrix]
            if piece.matrix not in matrices:
                matrices[piece.matrix] = elements.new_empty(matrix.rows, matrix.columns)
            _cut(matrices[piece.matrix], piece).copy_(part)
        return {number: compute(matrices.pop(number)).contiguous() for number in list(matrices)}


def _iter_pieces(matrices: Sequence[Matrix], places: Mapping[str, Place]) -> Iterator[tuple[Piece, Place]]:
    """The pieces of matrices in the parts of parameters that a rank holds, and where they are."""
    for number, matrix in enumerate(matrices):
        place = places.get(matrix.name)
        if place is None:
            continue
        first = max(place.start, matrix.start)
        end = min(place.start + place.elements, matrix.start + matrix.elements)
        if first < end:
            part = Place(first, place.master, place.offset + first - place.start, end - first)
            yield Piece(number, first - matrix.start, end - first), part


def deal_matrices(costs: Mapping[int, int], load: list[int]) -> dict[int, int]:
    """The rank that orthogonalises each matrix: the most expensive first, each to the rank with the least to do.

    The ``costs`` are added to the ``load``, which each rank has already.
    """
    owners = {}
    for number in sorted(costs, key=lambda number: (-costs[number], number)):
        owners[number] = min(range(len(load)), key=load.__getitem__)
        load[owners[number]] += costs[number]
    return owners


def _size(pieces: Iterable[Piece]) -> int:
    return sum(piece.elements for piece in pieces)


def _cut(matrix: Tensor, piece: Piece) -> Tensor:
    return matrix.view(-1).narrow(0, piece.start, piece.elements)


class Muon(torch.optim.AdamW):
    """Muon for the matrices of the layers, AdamW for all other weights. The schedule scales their learning rate of 1.

    DeepSpeed replaces the parameters of its groups by flat partitions of them, and calls :meth:`step` for some of them
    at a time, the same ones on all ranks. A gradient of None leaves the weights and the momentum alone.

    Args:
        model: The model.
        config: The betas, epsilon, momentum, rate and decoupled weight decay.
        dtype: The precision of the orthogonalisation.
        world: The process group.
        places: Where all that this rank updates is, by the name of the parameter. Called at the first step: it is known
            once DeepSpeed has partitioned the parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        config: OptimizerConfig,
        dtype: torch.dtype,
        world: World,
        places: Callable[[], Mapping[str, Place]],
    ) -> None:
        self._matrices = hidden_matrices(model)
        self._momentum, self._dtype = config.momentum, dtype
        self._world, self._places = world, places
        self._exchanges: dict[int, Exchange] = {}
        self._load = [0] * world.world_size
        names = {matrix.name for matrix in self._matrices}
        hidden = [parameter for name, parameter in model.named_parameters() if name in names]
        by_adam = [parameter for name, parameter in model.named_parameters() if name not in names]
        groups: list[dict[str, Any]] = [
            {"params": by_adam},
            {"params": hidden, "lr": config.muon_rate, IS_MUON: True},
        ]
        super().__init__(
            groups,
            lr=1.0, betas=(config.beta1, config.beta2), eps=config.eps, weight_decay=config.weight_decay, fused=True,
        )  # fmt: skip

    def step(self, closure: Any = None) -> Any:
        """Apply an update. Collective."""
        with torch.no_grad():
            for group in self.param_groups:
                masters = group["params"]
                if group.get(IS_MUON) and any(master.grad is not None for master in masters):
                    self._update(masters, group["lr"], group["weight_decay"])
                    for master in masters:
                        master.grad = None  # Adam leaves it alone
        return super().step(closure)

    def _update(self, masters: Sequence[Tensor], rate: float, weight_decay: float) -> None:
        for master in masters:
            self.state[master][MOMENTUM].lerp_(master.grad, 1.0 - self._momentum)
            if weight_decay:
                master.mul_(1.0 - rate * weight_decay)
        exchange = self._exchange(masters)
        updates = exchange.map(lambda matrix: orthogonalise(matrix, self._dtype), self._iter_nesterov(exchange))
        for part, update in zip(exchange.parts, updates, strict=True):
            part.of(part.master).sub_(update, alpha=rate)

    def _iter_nesterov(self, exchange: Exchange) -> Iterator[Tensor]:
        """Nesterov's momentum of each part: the momentum mixed with the gradient once more."""
        for part in exchange.parts:
            gradient, momentum = part.master.grad, self.state[part.master][MOMENTUM]
            assert gradient is not None
            yield part.of(gradient).lerp(part.of(momentum), self._momentum)

    def _exchange(self, masters: Sequence[Tensor]) -> Exchange:
        """The exchange of these masters, built at their first step."""
        key = id(masters[0])
        if key not in self._exchanges:
            ids = {id(master) for master in masters}
            places = {name: place for name, place in self._places().items() if id(place.master) in ids}
            self._exchanges[key] = Exchange(self._matrices, places, self._world, self._load)
        return self._exchanges[key]
