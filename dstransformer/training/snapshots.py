"""Copies DeepSpeed's state to memory. Imports DeepSpeed."""

from __future__ import annotations

import copy
from typing import Any

from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from torch import Tensor


class StateCollector(TorchCheckpointEngine):  # type: ignore[misc]  # DeepSpeed has no types
    """A DeepSpeed checkpoint engine that keeps states in memory instead of writing them to disk.

    DeepSpeed writes between collectives. There, one rank with a full disk would leave the others waiting.
    """

    def __init__(self) -> None:
        super().__init__()
        self._states: dict[str, Any] = {}

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing; there is no folder to create."""

    def save(self, state_dict: Any, path: str) -> None:
        """Copy a state to CPU memory."""
        self._states[path] = _copy_to_cpu(state_dict)

    def take(self) -> dict[str, Any]:
        """The states saved since the last call, by file name."""
        states, self._states = self._states, {}
        return states


def _copy_to_cpu(state: Any) -> Any:
    """Deep-copy nested containers, with all tensors in CPU memory."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: _copy_to_cpu(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(_copy_to_cpu, state))
    return copy.deepcopy(state)
