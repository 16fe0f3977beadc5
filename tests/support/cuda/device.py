"""The faked device: the extension that autograd needs, and what stands in for ``torch.cuda`` and the process group."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import gettempdir
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch
import torch.distributed as dist
from filelock import FileLock
from torch.utils.cpp_extension import TORCH_LIB_PATH, include_paths

_SOURCE = Path(__file__).with_name("device.cpp")

#: Compute capability of the faked device: that of an H100, for which every kernel can be chosen.
CAPABILITY = (9, 0)

#: Memory that the faked device claims to have.
MEMORY_BYTES = 80 << 30


def missing() -> str:
    """Why the device cannot be faked here; empty if it can."""
    if torch.version.cuda is not None or torch.version.hip is not None:
        return "needs a PyTorch without CUDA, whose place the faked device takes"
    return "" if shutil.which("g++") else "needs g++"


def build_extension() -> Path:
    """Compile ``device.cpp``, once for each version of it and of PyTorch; takes seconds."""
    folders = [f"-I{folder}" for folder in include_paths()]
    linked = [f"-L{TORCH_LIB_PATH}", f"-Wl,-rpath,{TORCH_LIB_PATH}", "-ltorch_cpu", "-lc10"]
    command = ["g++", "-std=c++20", "-shared", "-fPIC", *folders, str(_SOURCE), *linked, "-o"]
    key = hashlib.sha256(f"{torch.__version__} {command} {_SOURCE.read_text()}".encode()).hexdigest()[:16]
    library = Path(gettempdir(), f"dst-faked-cuda-{key}.so")
    with FileLock(f"{library}.lock"):
        if not library.exists():
            made = library.with_suffix(".partial")
            subprocess.run([*command, str(made)], check=True)
            made.rename(library)
    return library


def fake_device(on_wait: Callable[[str], None], visible: int = 8) -> None:
    """Make this process, which has loaded the extension, one that has CUDA devices; it stays so.

    Args:
        on_wait: Called with a name whenever the host waits for the device.
        visible: Number of devices.
    """
    for target, name, value in _stand_ins(on_wait, visible):
        mock.patch.object(target, name, value, create=True).start()
    # PyTorch would make a real tensor on the device at its first use, and one for each constant.
    mock.patch("torch._subclasses.fake_tensor.init_gpu_context").start()
    mock.patch("torch._subclasses.fake_tensor.FakeTensorMode.avoid_device_init", True).start()
    mock.patch("torch.utils.swap_tensors", _move_parameter).start()


def _move_parameter(parameter: Any, moved: Any) -> None:
    """What ``nn.Module.to`` does with a real parameter; it would swap fake ones, which weak references forbid."""
    parameter.data = moved.data
    parameter.fake_device = moved.fake_device


def join_group(rank: int, world_size: int) -> None:
    """Become one rank of a group whose collectives send nothing. All further groups are of the same kind.

    At stage 3 ranks check that they run the same modules in the same order; here there are no others to ask.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    new_group = dist.new_group

    def build(ranks: list[int] | None = None, timeout: timedelta | None = None, *_: Any, **__: Any) -> Any:
        return new_group(ranks, timeout, backend="fake")

    mock.patch.object(dist, "new_group", build).start()
    mock.patch.object(dist.distributed_c10d, "new_group", build).start()
    coordinator = "deepspeed.runtime.zero.partitioned_param_coordinator"
    mock.patch(f"{coordinator}.assert_ints_same_as_other_ranks").start()


class _Event:
    """An event; it has always happened."""

    on_wait: ClassVar[Callable[[str], None]]

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        type(self).on_wait("synchronize an event")

    def elapsed_time(self, _: Any) -> float:
        return 1.0


class _Stream:
    """A stream; everything that was put into it is done."""

    on_wait: ClassVar[Callable[[str], None]]
    device = torch.device("cuda", 0)
    device_index = 0
    cuda_stream = stream_id = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self) -> None:
        type(self).on_wait("synchronize a stream")

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def query(self) -> bool:
        return True


@contextmanager
def _within(_: Any) -> Iterator[None]:
    yield


def _stand_ins(on_wait: Callable[[str], None], visible: int) -> list[tuple[Any, str, Any]]:
    """What replaces each function of ``torch.cuda`` that an update calls."""

    def set_device(device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index
        if index is not None and index >= visible:
            raise RuntimeError(f"CUDA error: invalid device ordinal {index}")

    _Event.on_wait = _Stream.on_wait = on_wait
    main = _Stream()
    properties = SimpleNamespace(
        name="faked", major=CAPABILITY[0], minor=CAPABILITY[1], total_memory=MEMORY_BYTES, multi_processor_count=132
    )
    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: visible,
        "current_device": lambda: 0,
        "set_device": set_device,
        "synchronize": lambda _=None: on_wait("synchronize the device"),
        "get_device_capability": lambda _=None: CAPABILITY,
        "get_device_properties": lambda _=None: properties,
        "get_device_name": lambda _=None: "faked",
        "is_bf16_supported": lambda *_: True,
        "manual_seed_all": lambda _: None,
        "manual_seed": lambda _: None,
        "empty_cache": lambda: None,
        "is_current_stream_capturing": lambda: False,
        "reset_peak_memory_stats": lambda _=None: None,
        "memory_stats": lambda _=None: {},
        "mem_get_info": lambda _=None: (MEMORY_BYTES, MEMORY_BYTES),
        "Event": _Event,
        "Stream": _Stream,
        "stream": _within,
        "current_stream": lambda _=None: main,
        "default_stream": lambda _=None: main,
    }
    figures = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    ranges = {"range_push": lambda _: None, "range_pop": lambda: None}
    return [
        *((torch.cuda, name, value) for name, value in functions.items()),
        *((torch.cuda, name, lambda _=None: 0) for name in figures),
        *((torch.cuda.nvtx, name, value) for name, value in ranges.items()),
        (torch.Tensor, "record_stream", lambda *_: None),
    ]
