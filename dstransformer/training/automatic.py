"""Settles what an experiment leaves to the devices: its precision, and by that its number of micro-batches."""

from __future__ import annotations

from dstransformer.distributed.world import World
from dstransformer.training.devices import SHEETS
from dstransformer.training.micro_batches import (
    choose_micro_batches,
    find_stored_micro_batches,
    settle_micro_batches,
    usable_bytes,
    usable_of,
)
from dstransformer.training.precision import (
    ALL,
    choose_precision,
    emulation_warning,
    find_stored_precision,
    native_precisions,
    own_device,
    settle_precision,
)
from dstransformer.training.setup import Setup


def settle(setup: Setup, resume: str, world: World) -> Setup:
    """Give ``auto_precision`` and ``batch.micro_batches: auto`` what they are on the devices of a run. Collective.

    Args:
        setup: The experiment.
        resume: See :class:`dstransformer.training.setup.TrainRequest`.
        world: The process group.

    Raises:
        ConfigError: No number of micro-batches fits a GPU.
    """
    return settle_micro_batches(settle_precision(setup, resume, world), resume, world)


def settle_for(setup: Setup, resume: str, device: str | None) -> tuple[Setup, int | None, str | None]:
    """As :func:`settle` for one kind of device, in one process.

    Args:
        setup: The experiment.
        resume: See :class:`dstransformer.training.setup.TrainRequest`.
        device: The GPU, of :data:`SHEETS`, all of which have every precision; None for this machine's device.

    Returns:
        The experiment, the bytes that an update may take (see ``usable_bytes``), and a warning if the device emulates
        the precision.

    Raises:
        ConfigError: No number of micro-batches fits the device.
    """
    own = own_device()
    native = native_precisions(own) if device is None else ALL
    setup = choose_precision(setup, find_stored_precision(setup, resume), native)
    usable = usable_bytes(own) if device is None else usable_of(SHEETS[device].memory)
    setup = choose_micro_batches(setup, find_stored_micro_batches(setup, resume), usable)
    return setup, usable, emulation_warning(setup, own, native)
