"""The dry run: the checks of a training that one process can make, and its estimates. Nothing is trained or written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dstransformer.config import AUTO_PRECISION, fragment_names
from dstransformer.distributed.launcher import single_process_warning
from dstransformer.training.automatic import Devices, choose, emulation_warning, own_device
from dstransformer.training.checkpoints.resume import check_resumed
from dstransformer.training.estimate import Estimate, estimate, plan_warnings
from dstransformer.training.runtime import check_sections
from dstransformer.training.setup import (
    GIB,
    Setup,
    TrainRequest,
    check_corpus,
    check_memory,
    find_resume_point,
    machine_memory,
    resolve_alone,
)


@dataclass(frozen=True)
class DryRun:
    """The result of ``dst train --dry-run``.

    Attributes:
        setup: The experiment.
        estimate: Its plan and its memory.
        usable_gib: GiB that an update may take on a GPU; None without one.
        warnings: What is probably a mistake.
    """

    setup: Setup
    estimate: Estimate
    usable_gib: float | None
    warnings: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "config": self.setup.config.without_secrets().model_dump(),
            "ds_config": dict(self.setup.ds_config),
            "world_size": self.setup.world_size,
            "precision": self.setup.precision,
            "precision_from": self.setup.precision_from,
            "micro_batches_from": self.setup.micro_batches_from,
            "estimate": asdict(self.estimate),
            "usable_memory_gib": self.usable_gib,
            "warnings": list(self.warnings),
        }


def dry_run(request: TrainRequest, device: str | None = None, setup: Setup | None = None) -> DryRun:
    """Check configuration, corpus, resumption and the memory that planning takes in one process; plan the first epoch.

    Args:
        request: The options of the run.
        device: The GPU it is planned for, of :data:`dstransformer.training.devices.GPU_MEMORY`; None for this
            machine's.
        setup: What :func:`resolve_alone` makes of the request, if that was done before this module was imported.

    Raises:
        UserError: :func:`dstransformer.training.run.train` would raise it as well. It also checks what depends on the
            other processes and their devices (the attention backend, the memory of a node), and creates the run folder.
    """
    setup = setup or resolve_alone(request)
    resumed = find_resume_point(request, setup)
    if not {*setup.config.deepspeed} <= {*fragment_names(), AUTO_PRECISION}:  # a file of the user's
        check_sections(setup.ds_config)
    devices = Devices.of(own_device()) if device is None else Devices.named(device)
    setup = choose(setup, resumed, devices)
    check_corpus(setup, verify=True)
    check_memory(setup, 1, machine_memory(), weights=False)
    if resumed is not None:
        check_resumed(resumed, setup.config, setup.free_keys)
    estimated = estimate(setup)
    warnings = plan_warnings(setup.config, estimated.updates_per_epoch, estimated.stage_updates)
    emulated = emulation_warning(setup, own_device()) if device is None else None
    warnings += filter(None, [single_process_warning(os.environ), emulated])
    warnings += setup.task.notes
    return DryRun(setup, estimated, devices.usable / GIB if devices.usable else None, warnings)
