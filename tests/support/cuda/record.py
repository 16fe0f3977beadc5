"""What an update asks of the device: operators, the bytes and operations of each, waits, and memory."""

from __future__ import annotations

import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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

#: What the caching allocator rounds the size of a tensor up to.
ALLOCATION_BYTES = 512

#: Operators that start no kernel, beside those that return a view.
_WITHOUT_KERNEL = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "lift_fresh", "is_pinned",
}  # fmt: skip

#: Operators that read or write as much of their first tensor as their result or their source holds.
_SPARSE = {"embedding", "gather", "index", "index_select", "scatter_add_", "index_copy_", "index_add_"}

#: The factors of the operations of a product, by operator: the arguments that are its two matrices.
_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operators that run on fake tensors of a CUDA device. Enter it inside ``FakeTensorMode``.

    An operator counts if it starts a kernel or a copy: views and empty tensors do not. What the host reads from the
    device is 1, and False for booleans, as fake tensors hold nothing. Fake tensors raise where tensors of two devices
    meet, and where the size of a result depends on data, for which the host would wait.

    Attributes:
        operators: Calls of each operator, with the precision of its result, the bytes that one call reads and writes,
            and the operations of one call if it is a product.
        namespaces: The namespaces of the operators, of those without a kernel too.
        waits: How often the host waited for the device, by reason and function.
        live_bytes: Bytes of all storages on the device that are alive.
        peak_bytes: The largest ``live_bytes`` since the last :meth:`clear`.
        at_peak: The operator that reached it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: Counter[tuple[str, str, int, int]] = Counter()
        self.namespaces: set[str] = set()
        self.waits: Counter[str] = Counter()
        self.live_bytes = self.peak_bytes = 0
        self.at_peak = ""
        self._storages: dict[int, weakref.ref[Any]] = {}

    def clear(self) -> None:
        """Forget all but what is alive."""
        self.operators.clear()
        self.namespaces.clear()
        self.waits.clear()
        self.peak_bytes = self.live_bytes

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
        on_device = [tensor for tensor in (*inputs, *outputs) if tensor.is_cuda]
        if on_device:
            self._count_copy(name, args, given, inputs, outputs)
            if name not in _WITHOUT_KERNEL and not _is_view(func):
                first = outputs[0] if outputs else inputs[0]
                moved = _bytes_moved(name, inputs, outputs)
                self.operators[name, str(first.dtype).removeprefix("torch."), moved, _product_flops(name, args)] += 1
            for tensor in on_device:
                self._track(tensor, name)
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

    def _track(self, tensor: Tensor, name: str) -> None:
        """Follow the storage of a tensor until nothing refers to it."""
        if not tensor.is_cuda:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages and self._storages[key]() is not None:
            return
        size = -(-storage.nbytes() // ALLOCATION_BYTES) * ALLOCATION_BYTES
        self._storages[key] = weakref.ref(storage, self._forget(key, size))
        self.live_bytes += size
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.at_peak = self.live_bytes, name

    def _forget(self, key: int, size: int) -> Callable[[Any], None]:
        def forget(reference: Any) -> None:
            self.live_bytes -= size
            if self._storages.get(key) is reference:
                del self._storages[key]

        return forget


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


def _sizes(tensors: list[Tensor]) -> Iterator[int]:
    return (tensor.numel() * tensor.element_size() for tensor in tensors if tensor.is_cuda)


def _bytes_moved(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Bytes that an operator reads and writes if it reads each input and writes each result once."""
    if name in _SPARSE:
        rest = inputs[1:] if name.endswith("_") else outputs
        return 2 * sum(_sizes(rest))
    return sum(_sizes(inputs)) + sum(_sizes(outputs))


def _product_flops(name: str, args: tuple[Any, ...]) -> int:
    """Operations of a matrix product, two for each multiply-add; 0 for other operators."""
    if name not in _PRODUCTS:
        return 0
    left, right = (args[place] for place in _PRODUCTS[name])
    return 2 * int(left.numel()) * int(right.shape[-1])
