"""Which weights and moments this rank holds, by DeepSpeed's ZeRO stage, as views into DeepSpeed's own tensors.

DeepSpeed is given weights in fp32 at every precision, so that there is one layout for each stage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dstransformer.distributed.world import World
from dstransformer.training.checkpoints.shards import ADAM_MOMENTS, EMA, MUON_MOMENTS, WEIGHT, Shard, ShardReader


class Partition:
    """The part of the weights and moments that this rank updates.

    Args:
        engine: DeepSpeed's engine.
        model: The model, whose names the weights have in checkpoints; DeepSpeed's module may be larger.
        world: The process group.
        by_muon: The names of the parameters that Muon updates; Adam updates the others.
    """

    def __init__(self, engine: Any, model: nn.Module, world: World, by_muon: Collection[str] = ()) -> None:
        self._module = model
        self._stage = stage = int(engine.zero_optimization_stage())
        self._zero = engine.optimizer if stage else None
        self._optimizer: torch.optim.Optimizer = engine.optimizer.optimizer if stage else engine.optimizer
        self._world = world
        self._moments = {
            name: MUON_MOMENTS if name in by_muon else ADAM_MOMENTS for name, _ in self._module.named_parameters()
        }
        names = {id(parameter): name for name, parameter in self._module.named_parameters()}
        # The parameters of which each master holds a part, on some rank. One optimizer updates all of a group.
        groups = [[parameter] for parameter in self._module.parameters()]
        if stage:
            groups = getattr(self._zero, "fp16_groups" if stage == 3 else "bit16_groups")
        for master, parameters in zip(self._masters(), groups, strict=True):
            state, moments = self._optimizer.state[master], self._moments[names[id(parameters[0])]]
            if not state:  # what the optimizer would create at its first step, so that it can be filled in before
                if moments == ADAM_MOMENTS:
                    offloaded = type(self._optimizer).__name__ == "DeepSpeedCPUAdam"
                    state["step"] = 0 if offloaded else torch.zeros((), dtype=torch.float32, device=master.device)
                for moment in moments:
                    state[moment] = torch.zeros_like(master.detach())

    def _masters(self) -> list[Tensor]:
        """The tensors that the optimizer updates: parameters without ZeRO, flat partitions of them with ZeRO."""
        if not self._stage:
            return list(self._module.parameters())
        name = "fp32_partitioned_groups_flat" if self._stage == 3 else "single_partition_of_fp32_groups"
        return list(getattr(self._zero, name))

    def shards(self) -> list[Shard]:
        """Views of all that this rank updates."""
        found = []
        for name, place in self.places():
            state, kinds = self._optimizer.state[place.master], self._moments[name]
            tensors = (place.master.detach(), *(state[moment] for moment in kinds))
            cut = (tensor.view(-1).narrow(0, place.offset, place.elements) for tensor in tensors)
            found.append(Shard(name, place.start, dict(zip((WEIGHT, *kinds), cut, strict=True))))
        return found

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

    @torch.no_grad()
    def read(self, reader: ShardReader, averages: Sequence[Tensor] | None) -> None:
        """Fill this rank's part from a checkpoint. :meth:`spread` has to follow.

        Args:
            reader: The files of the checkpoint.
            averages: The moving average of the weights, a tensor for each of :meth:`shards`, if there is one.

        Raises:
            DataError: The checkpoint does not hold all of it.
        """
        parameters: dict[str, Any] = dict(self._module.named_parameters())
        sizes = {name: int(getattr(one, "ds_numel", one.numel())) for name, one in parameters.items()}
        average = () if averages is None else (EMA,)
        reader.check(sizes, {name: (WEIGHT, *moments, *average) for name, moments in self._moments.items()})
        for number, shard in enumerate(self.shards()):
            for kind, tensor in shard.tensors.items():
                reader.read(kind, shard.name, shard.start, tensor)
            if averages is not None:
                reader.read(EMA, shard.name, shard.start, averages[number])
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

    def iter_weights(self, *, gather: bool) -> Iterator[tuple[str, Tensor]]:
        """Iterate over all weights by name: whole, in fp32, on the device, one at a time. Collective.

        Args:
            gather: Collect them from the masters of all ranks, which differ from what the model computes with while the
                moving average is in their place.
        """
        from deepspeed.utils import safe_get_full_fp32_param

        for name, parameter in self._module.named_parameters():
            if self._stage == 3 or (self._stage and gather):
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
