"""What a training costs while it runs: the operations of its updates, and the time of its devices."""

from __future__ import annotations

import time

from dstransformer.checkpoints.format import Cost
from dstransformer.config import Config
from dstransformer.model import LengthSums, training_flops


class CostMeter:
    """Adds up the cost of a run. It needs no messages between ranks, as every rank knows the lengths of an update.

    Args:
        config: The experiment.
        vocab_size: Number of pieces of the tokenizer.
        devices: Number of processes.
    """

    def __init__(self, config: Config, vocab_size: int, devices: int) -> None:
        self._config = config
        self._rows = config.model.embedding_rows(vocab_size)
        self._devices = devices
        self._spent = Cost()
        self._flops = 0
        self._began: float | None = None

    def resume(self, spent: Cost) -> None:
        """Go on from the cost in a checkpoint."""
        self._spent = spent

    def start_clock(self) -> None:
        """Count time from now on."""
        self._began = time.monotonic()

    def add(self, sums: LengthSums) -> None:
        """Count an update with these sentences, over all ranks."""
        self._flops += self._config.loss.passes * training_flops(self._config.model, self._rows, sums)

    @property
    def total(self) -> Cost:
        """The cost up to now. On ranks other than 0 the time may differ a little; rank 0's is the one on record."""
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        return Cost(
            flops=self._spent.flops + self._flops,
            device_seconds=self._spent.device_seconds + seconds * self._devices,
        )
