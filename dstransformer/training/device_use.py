"""How much of its GPU a run uses: the memory in use, and the share of the peak that its operations reach (MFU)."""

from __future__ import annotations

import torch

from dstransformer.config import Config, Precision
from dstransformer.data.plan import LengthSums
from dstransformer.distributed.world import World
from dstransformer.model import training_flops
from dstransformer.training.devices import datasheet_peak

_GIB = 2**30


class DeviceUse:
    """Adds up the operations of updates, and compares them with what the GPUs could do. On a CPU it says nothing.

    Args:
        config: The experiment.
        vocab_size: Number of pieces of the tokenizer.
        precision: The precision of the forward and backward pass.
        world: The process group. Its GPUs are taken to be like that of this rank.
    """

    def __init__(self, config: Config, vocab_size: int, precision: Precision, world: World) -> None:
        self._config = config
        self._rows = config.model.embedding_rows(vocab_size)
        self._devices = world.world_size
        self._device = world.device if world.device.type == "cuda" else None
        is_half = self._device is not None and precision != "fp32"  # data sheets give the peak of half precision
        self._peak = datasheet_peak(torch.cuda.get_device_name(self._device)) if is_half else None
        self._flops = 0

    def clear(self) -> None:
        """Forget the updates so far."""
        self._flops = 0

    def add(self, sums: LengthSums) -> None:
        """Count an update with these sentences, over all ranks."""
        self._flops += update_flops(self._config, self._rows, sums)

    def metrics(self, seconds: float) -> dict[str, float]:
        """``memory_gib`` and ``mfu`` of the updates added, which took so many seconds.

        The memory is what nvidia-smi shows of this rank's GPU, other processes included. MFU (Chowdhery et al., 2022)
        is the operations of forward and backward pass, without what is computed again, over the GPUs' dense peak in
        half precision; not in fp32, and not for a GPU that :func:`datasheet_peak` does not know.
        """
        if self._device is None:
            return {}
        free, total = torch.cuda.mem_get_info(self._device)
        metrics = {"memory_gib": (total - free) / _GIB}
        if self._peak is not None:
            metrics["mfu"] = self._flops / (seconds * self._devices * self._peak)
        return metrics


def update_flops(config: Config, rows: int, sums: LengthSums) -> int:
    """Operations of an update: both passes with R-Drop.

    Args:
        config: The experiment.
        rows: Rows of the softmax matrix.
        sums: The sentences of the update.
    """
    return config.loss.passes * training_flops(config.model, rows, sums)
