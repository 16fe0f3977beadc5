"""Which weights, moments and averages this rank holds, by DeepSpeed's ZeRO stage.

Weights and moments are views into DeepSpeed's own tensors.

DeepSpeed is given weights in fp32 at every precision, so that there is one layout for each stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dstransformer.distributed.world import World
from dstransformer.training.checkpoints.shards import EMA, WEIGHT, Shard, ShardReader


class Partition:
    """The part of the weights, moments and averages that this rank updates.

    Building it creates the moments, which the optimizer would create at its first step.

    Args:
        engine: DeepSpeed's engine.
        model: The model, whose names the weights have in checkpoints; DeepSpeed's module may be larger.
        world: The process group.
        moments: The names of the tensors that the optimizer keeps of each parameter, by its name.
        ema_decay: That of the moving average; 0 for none.
    """

    def __init__(
        self, engine: Any, model: nn.Module, world: World, moments: Mapping[str, tuple[str, ...]], ema_decay: float
    ) -> None:
        self._module = model
        self._stage = stage = int(engine.zero_optimization_stage())
        self._zero = engine.optimizer if stage else None
        self._optimizer: torch.optim.Optimizer = engine.optimizer.optimizer if stage else engine.optimizer
        self._world = world
        self._moments = moments
        names = {id(parameter): name for name, parameter in self._module.named_parameters()}
        # The parameters of which each master holds a part, on some rank. One optimizer updates all of a group.
        groups = [[parameter] for parameter in self._module.parameters()]
        if stage:
            groups = getattr(self._zero, "fp16_groups" if stage == 3 else "bit16_groups")
        for master, parameters in zip(self._masters(), groups, strict=True):
            state = self._optimizer.state[master]
            if not state:
                # PyTorch's fused optimizers count steps on the device.
                fused = self._optimizer.defaults.get("fused")
                state["step"] = torch.zeros((), dtype=torch.float32, device=master.device) if fused else 0
                for moment in moments[names[id(parameters[0])]]:
                    state[moment] = torch.zeros_like(master.detach())
        self._average: WeightAverage | None = None
        if ema_decay:
            self._average = WeightAverage([shard.tensors[WEIGHT] for shard in self.shards()], ema_decay)

    def _masters(self) -> list[Tensor]:
        """The tensors that the optimizer updates: parameters without ZeRO, flat partitions of them with ZeRO."""
        if not self._stage:
            return list(self._module.parameters())
        name = "fp32_partitioned_groups_flat" if self._stage == 3 else "single_partition_of_fp32_groups"
        return list(getattr(self._zero, name))

    def shards(self) -> list[Shard]:
        """Views of all that this rank updates."""
        shards = []
        for name, place in self.places():
            state, kinds = self._optimizer.state[place.master], self._moments[name]
            moments = {moment: place.of(state[moment]) for moment in kinds}
            shards.append(Shard(name, place.start, {WEIGHT: place.of(place.master.detach()), **moments}))
        if self._average is not None:
            for shard, average in zip(shards, self._average.averages, strict=True):
                shard.tensors[EMA] = average
        return shards

    def places(self) -> Iterator[tuple[str, Place]]:
        """Where all that this rank updates is, by the name of the parameter."""
        for name, parameter in self._module.named_parameters():
            place = self._place(parameter)
            if place is not None:
                yield name, place

    def _place(self, parameter: Any) -> Place | None:
        """This rank's part of a parameter; None if it has none."""
        if not self._stage:
            return Place(0, parameter, 0, parameter.numel())
        if self._stage < 3:
            mapping = parameter._hp_mapping
            if mapping is None:
                return None
            address, master = mapping.get_hp_fragment_address(), self._masters()[mapping.param_group_index]
            return Place(mapping.lp_fragment_address.start, master, address.start, address.numel)
        zero: Any = self._zero
        group, offset, elements = zero.grad_position[zero.get_param_id(parameter)]
        start = self._world.rank * elements
        filled = min(elements, parameter.ds_numel - start)  # the last partitions end in padding
        return Place(start, self._masters()[group], offset, filled) if filled > 0 else None

    def set_step(self, applied: int) -> None:
        """Set the number of updates that Adam has applied, for its bias correction."""
        for master in self._masters():
            state = self._optimizer.state[master]
            if (step := state.get("step")) is not None:
                state["step"] = torch.full_like(step, applied) if isinstance(step, Tensor) else applied

    def add_to_average(self, applied: int) -> None:
        """Include the weights in the moving average, if there is one, after ``applied`` updates."""
        if self._average is not None:
            self._average.add(applied)

    @torch.no_grad()
    def read(self, reader: ShardReader) -> None:
        """Fill this rank's part from a checkpoint. :meth:`spread` has to follow.

        Raises:
            DataError: The checkpoint does not hold all of it.
        """
        parameters: dict[str, Any] = dict(self._module.named_parameters())
        sizes = {name: int(getattr(weight, "ds_numel", weight.numel())) for name, weight in parameters.items()}
        average = () if self._average is None else (EMA,)
        reader.check(sizes, {name: (WEIGHT, *moments, *average) for name, moments in self._moments.items()})
        for shard in self.shards():
            for kind, tensor in shard.tensors.items():
                reader.read(kind, shard.name, shard.start, tensor)
        if self._stage in (1, 2):
            for name, parameter in parameters.items():
                reader.read(WEIGHT, name, 0, parameter.data.view(-1))

    @torch.no_grad()
    def spread(self) -> None:
        """Copy this rank's part to where stage 3 gathers weights from, which may be the same memory. Collective."""
        if self._stage < 3:
            return
        zero: Any = self._zero
        persistent = zero.persistent_parameters  # small ones, whole on every rank
        if persistent:
            persistent[0].partition(persistent)
        parameters: dict[str, Any] = dict(self._module.named_parameters())
        for shard in self.shards():
            master = shard.tensors[WEIGHT]
            parameters[shard.name].ds_tensor.data[: len(master)].copy_(master)
        zero.invalidate_secondary_tensor()  # with zero_hpz_partition_size, each node's own copy of the initial weights
        if persistent:
            persistent[0].all_gather(persistent)

    def iter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over all weights by name: whole, in fp32, on the device, one at a time. Collective.

        If there is a moving average they are that, until the iteration ends.
        """
        from deepspeed.utils import safe_get_full_fp32_param

        with nullcontext() if self._average is None else self._average.in_place_of_weights():
            for name, parameter in self._module.named_parameters():
                # With ZeRO the average is in the masters, not in what the model computes with.
                if self._stage == 3 or (self._stage and self._average is not None):
                    full = safe_get_full_fp32_param(parameter)
                    yield name, full.detach().view(getattr(parameter, "ds_shape", parameter.shape))
                else:
                    yield name, parameter.detach()


class Place(NamedTuple):
    """A rank's part of a parameter: elements of the parameter from ``start`` on, of its master from ``offset`` on."""

    start: int
    master: Tensor
    offset: int
    elements: int

    def of(self, tensor: Tensor) -> Tensor:
        """The same elements of a tensor of the master's shape: its gradient or a moment, or the master itself."""
        return tensor.view(-1).narrow(0, self.offset, self.elements)


def ema_weight(decay: float, updates: int) -> float:
    """The share of the average that stays after update ``updates``, from 1: ``min(decay, (1 + n) / (10 + n))``.

    The average starts at the initial weights. The smaller shares of the first updates let it forget them.
    """
    return min(decay, (1 + updates) / (10 + updates))


class WeightAverage:
    """An exponential moving average of the weights (Polyak and Juditsky, 1992, with exponentially decaying shares).

    It holds, in fp32, the average of the weights that this rank updates: all of them, or its partition in ZeRO.

    Attributes:
        averages: The average of each of the weights, which the optimizer updates in place.
    """

    def __init__(self, masters: Sequence[Tensor], decay: float) -> None:
        self._masters = [master.detach() for master in masters]
        self.averages = [master.float().clone() for master in self._masters]
        self._decay = decay

    @torch.no_grad()
    def add(self, updates: int) -> None:
        """Include the weights after ``updates`` updates that were applied."""
        weights = [master.float() for master in self._masters]
        torch._foreach_lerp_(self.averages, weights, 1.0 - ema_weight(self._decay, updates))

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Put the average in the place of the weights for a while. CPU memory holds the weights meanwhile."""
        with torch.no_grad():
            held = [master.to("cpu", copy=True) for master in self._masters]
            torch._foreach_copy_(self._masters, self.averages)
        try:
            yield
        finally:
            with torch.no_grad():
                for master, weights in zip(self._masters, held, strict=True):
                    master.copy_(weights)
