"""What an update asks of the device: operators and waits."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import dstransformer

#: Where the code lies that may wait for the device.
_DEEPSPEED = Path(find_spec("deepspeed").submodule_search_locations[0])  # type: ignore[index, union-attr]
_PROJECT = Path(dstransformer.__file__).parent

#: Operators that start no kernel, beside those that return a view.
_WITHOUT_KERNEL = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "lift_fresh", "is_pinned",
}  # fmt: skip


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operators that run on fake tensors of a CUDA device. Enter it inside ``FakeTensorMode``.

    An operator counts if it starts a kernel or a copy: views and empty tensors do not. What the host reads from the
    device is 1, and False for booleans, as fake tensors hold nothing. Fake tensors raise where tensors of two devices
    meet, and where the size of a result depends on data, for which the host would wait.

    Attributes:
        operators: Calls of each operator, by its name and the precision of its result.
        namespaces: The namespaces of the operators, of those without a kernel too.
        waits: How often the host waited for the device, by reason and function.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: Counter[tuple[str, str]] = Counter()
        self.namespaces: set[str] = set()
        self.waits: Counter[str] = Counter()

    def clear(self) -> None:
        """Forget what was recorded."""
        self.operators.clear()
        self.namespaces.clear()
        self.waits.clear()

    def wait(self, reason: str) -> None:
        """Count a wait of the host for the device, under the function that asked for it."""
        self.waits[f"{reason}: {_caller()}"] += 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator and record it."""
        given = kwargs or {}
        if func.namespace == "prim":  # questions, such as that for the device
            return func(*args, **given)
        with self:
            parts = func.decompose(*args, **given)  # inference mode leaves it whole
        if parts is not NotImplemented:
            return parts
        self.namespaces.add(func.namespace)
        name = str(func.overloadpacket.__name__)
        if name == "_local_scalar_dense":
            return self._read(args[0])
        found = func(*args, **given)
        inputs = [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        if any(tensor.is_cuda for tensor in (*inputs, *outputs)):
            self._count_copy(name, args, given, inputs, outputs)
            if name not in _WITHOUT_KERNEL and not _is_view(func):
                first = outputs[0] if outputs else inputs[0]
                self.operators[name, str(first.dtype).removeprefix("torch.")] += 1
        return found

    def _read(self, tensor: Tensor) -> bool | float | int:
        if tensor.is_cuda:
            self.wait("item")
        if tensor.dtype == torch.bool:
            return False
        return 1.0 if tensor.dtype.is_floating_point else 1

    def _count_copy(
        self, name: str, args: tuple[Any, ...], given: Mapping[str, Any], inputs: list[Tensor], outputs: list[Tensor]
    ) -> None:
        """Count a copy between host and device for which the host waits."""
        if name not in ("_to_copy", "copy_"):
            return
        source, target = (args[1], args[0]) if name == "copy_" else (inputs[0], outputs[0])
        if not isinstance(source, Tensor) or source.is_cuda == target.is_cuda:
            return
        is_async = args[2] if name == "copy_" and len(args) > 2 else given.get("non_blocking", False)
        if not is_async:
            self.wait("copy to the device" if target.is_cuda else "copy to the host")


def _caller() -> str:
    """The function of the project or of DeepSpeed that is running: its file and name."""
    for frame in reversed(traceback.extract_stack()):
        for root in (_DEEPSPEED, _PROJECT):
            if frame.filename.startswith(f"{root}/") and "/accelerator/" not in frame.filename:
                return f"{root.name}/{frame.filename.removeprefix(f'{root}/')} {frame.name}"
    return "elsewhere"


def _is_view(func: Any) -> bool:
    """Whether an operator returns a view of its input and changes nothing."""
    returns = func._schema.returns
    return bool(returns) and all(value.alias_info is not None and not value.alias_info.is_write for value in returns)
