"""Early stopping: training ends when validation has not improved for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from dstransformer.config import ValidationConfig
from dstransformer.errors import counted
from dstransformer.evaluation import Evaluation
from dstransformer.training.checkpoints.format import EarlyStoppingState


@dataclass(eq=False)
class EarlyStopping:
    """Follows the validation score. ``validation.patience`` validations without a better one end the training.

    Attributes:
        config: The patience; a patience of 0 never ends the training.
        state: The progress so far, stored in checkpoints.
    """

    config: ValidationConfig
    state: EarlyStoppingState = field(default_factory=EarlyStoppingState, init=False)

    @property
    def is_over(self) -> bool:
        """Whether training is to end."""
        return 0 < self.config.patience <= self.state.validations

    @property
    def is_new_best(self) -> bool:
        """Whether the last validation is the best so far, so that its weights may be needed."""
        return self.config.patience > 0 and self.state.validations == 0

    def update(self, evaluation: Evaluation) -> None:
        """Record a validation. A score computed in another way starts the count again; NaN is no improvement."""
        main, state = evaluation.main, self.state
        if (main.name, main.signature) != (state.metric, state.signature):
            best = None if math.isnan(main.rank) else main.rank
            self.state = EarlyStoppingState(main.name, best, signature=main.signature)
        elif main.rank > (-math.inf if state.best is None else state.best):
            self.state = EarlyStoppingState(main.name, main.rank, signature=main.signature)
        else:
            self.state = replace(state, validations=state.validations + 1)

    def describe(self) -> str:
        """The reason of an early end, in one line."""
        return (
            f"no better {self.state.metric} on validation in the last {counted(self.state.validations, 'validation')}"
        )
