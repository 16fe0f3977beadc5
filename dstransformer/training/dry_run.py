"""The dry run: the checks of a training that one process can make, and its estimates. Nothing is trained or written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dstransformer.config import AUTO_PRECISION, fragment_names
from dstransformer.distributed.launcher import single_process_warning
from dstransformer.training.automatic import choose, emulation_warning, native_precisions, own_device
from dstransformer.training.checkpoints.resume import check_resumed
from dstransformer.training.estimate import Estimate, estimate, plan_warnings
from dstransformer.training.runtime import check_sections, model_state_bytes
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
        estimate: Its plan, and what that costs.
        model_state_gib: Weights, gradients and moments on each GPU in GiB by ZeRO stage, see
            :func:`dstransformer.training.runtime.model_state_bytes`.
        warnings: What is probably a mistake.
    """

    setup: Setup
    estimate: Estimate
    model_state_gib: Mapping[str, float]
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
            "model_state_gib": dict(self.model_state_gib),
            "warnings": list(self.warnings),
        }


def dry_run(request: TrainRequest, setup: Setup | None = None) -> DryRun:
    """Check configuration, corpus, resumption and the memory that planning takes in one process; plan the first epoch.

    Args:
        request: The options of the run.
        setup: What :func:`resolve_alone` makes of the request, if that was done before this module was imported.

    Raises:
        UserError: :func:`dstransformer.training.run.train` would raise it as well. It also checks what depends on the
            other processes and their devices (the attention backend, the memory of a node), and creates the run folder.
    """
    setup = setup or resolve_alone(request)
    resumed = find_resume_point(request, setup)
    if not {*setup.config.deepspeed} <= {*fragment_names(), AUTO_PRECISION}:  # a file of the user's
        check_sections(setup.ds_config)
    device = own_device()
    setup = choose(setup, resumed, native_precisions(device))
    check_corpus(setup, verify=True)
    check_memory(setup, 1, machine_memory(), weights=False)
    if resumed is not None:
        check_resumed(resumed, setup.config, setup.free_keys)
    estimated = estimate(setup)
    warnings = plan_warnings(setup.config, estimated.updates_per_epoch, estimated.stage_updates)
    warnings += filter(None, [single_process_warning(os.environ), emulation_warning(setup, device)])
    warnings += setup.task.notes
    return DryRun(setup, estimated, _model_state_gib(setup, estimated.parameters), warnings)


def _model_state_gib(setup: Setup, parameters: int) -> dict[str, float]:
    model, vocab_size = setup.config.model, setup.corpus.tokenizer.vocab_size
    largest_layer = model.d_model * max(model.embedding_rows(vocab_size), model.d_ff)
    by_stage = model_state_bytes(parameters, largest_layer, setup.world_size)
    return {stage: size / GIB for stage, size in by_stage.items()}
