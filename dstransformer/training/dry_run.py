"""The dry run: the checks of a training that one process can make, and its estimates. Nothing is trained or written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dstransformer.config import zero_stage
from dstransformer.distributed.launcher import check_environment, read_processes, single_process_warning
from dstransformer.evaluation.task import Task
from dstransformer.training.automatic import settle_for
from dstransformer.training.devices import SHEETS, Sheet, UpdateTime
from dstransformer.training.estimate import Estimate, estimate, plan_warnings
from dstransformer.training.setup import (
    GIB,
    Setup,
    TrainRequest,
    check_corpus,
    check_memory,
    find_resume_checkpoint,
    machine_memory,
    resolve_setup,
)
from dstransformer.training.speed import predict_update


@dataclass(frozen=True)
class DryRun:
    """The result of ``dst train --dry-run``.

    Attributes:
        setup: The experiment.
        estimate: Its plan and its memory.
        usable_gib: GiB that an update may take on a GPU; None without one.
        update_time: The predicted time of an update on the GPU that was named; None without one, and for what
            :func:`dstransformer.training.speed.predict_update` or ``estimate.peak_memory_gib`` does not cover.
        warnings: What is probably a mistake.
    """

    setup: Setup
    estimate: Estimate
    usable_gib: float | None
    update_time: UpdateTime | None
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
            "update_seconds": None if self.update_time is None else asdict(self.update_time),
            "warnings": list(self.warnings),
        }


def _update_time(setup: Setup, estimated: Estimate, sheet: Sheet) -> UpdateTime | None:
    if estimated.peak_memory_gib is None:
        return None
    return predict_update(
        setup.config,
        zero_stage(setup.ds_config),
        setup.world_size,
        sheet,
        parameters=estimated.parameters,
        rows=setup.config.model.embedding_rows(setup.corpus.tokenizer.vocab_size),
        src_tokens=estimated.src_tokens_per_update,
        tgt_tokens=estimated.tgt_tokens_per_update,
        flops=estimated.flops_per_update,
    )


def dry_run(request: TrainRequest, device: str | None = None) -> DryRun:
    """Check configuration, corpus, resumption and the memory that planning takes in one process; plan the first epoch.

    Args:
        request: The options of the run.
        device: The GPU it is planned for, of :data:`dstransformer.training.devices.SHEETS`; None for this machine's.

    Raises:
        UserError: :func:`dstransformer.training.run.train` would raise it as well. It also checks what depends on the
            other processes and their devices (the attention backend, the memory of a node), and creates the run folder.
    """
    check_environment(os.environ)
    setup = resolve_setup(request, read_processes(os.environ, require_rank=False))
    setup, usable, emulated = settle_for(setup, request.resume, device)
    check_corpus(setup, verify=True)
    check_memory(setup, 1, machine_memory(), weights=False)
    find_resume_checkpoint(request, setup)
    estimated = estimate(setup)
    warnings = plan_warnings(setup.config, estimated.updates_per_epoch, estimated.stage_updates)
    warnings += filter(None, [single_process_warning(os.environ), emulated])
    warnings += Task.build(setup.corpus.manifest, setup.config.validation).notes
    time = None if device is None else _update_time(setup, estimated, SHEETS[device])
    return DryRun(setup, estimated, usable / GIB if usable else None, time, warnings)
