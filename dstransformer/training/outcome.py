"""How a run ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dstransformer.errors import RUN_AGAIN
from dstransformer.evaluation import Evaluation
from dstransformer.training.checkpoints.format import Cost

if TYPE_CHECKING:
    from dstransformer.training.final import Choice


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        run: The run folder.
        step: Number of updates computed.
        stopped_by: What stopped the run, such as SIGTERM; None if it wrote its final bundle.
        evaluations: The evaluations of the bundle, by split.
        final: How the bundle was chosen; None if there is no bundle.
        cost: What the training has cost since its first update, before resumes too.
        devices: Number of processes.
    """

    run: str
    step: int
    stopped_by: str | None
    evaluations: Mapping[str, Evaluation]
    final: Choice | None
    cost: Cost
    devices: int

    @property
    def status(self) -> int:
        """The exit status."""
        return 0 if self.stopped_by is None else RUN_AGAIN

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "step": self.step,
            "stopped_by": self.stopped_by,
            "evaluations": {split: evaluation.to_json() for split, evaluation in self.evaluations.items()},
            "averaged_steps": [] if self.final is None else self.final.steps[self.final.chosen],
            "final": None if self.final is None else asdict(self.final),
            "cost": {**self.cost.metrics(), "flops": self.cost.flops, "devices": self.devices},
            "run": self.run,
        }
