"""Whole updates on a faked CUDA device: no mixing of devices, how often the host waits, how many operators run.

See :mod:`support.cuda`. Nothing is computed, so nothing here is about results or time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from support.cuda.device import missing
from support.cuda.record import Recorder
from support.cuda.updates import Layout, Recorded, record_update
from torch._subclasses.fake_tensor import FakeTensorMode

faked = pytest.mark.skipif(bool(missing()), reason=missing() or "can be faked")

#: The namespaces of PyTorch's own operators: tensors, process groups, and the marks of a profiler.
PYTORCH = {"aten", "c10d", "profiler"}

#: A model that takes a second, with every part of a large one.
SMALL = (
    "model.num_layers=1", "model.d_model=64", "model.d_ff=128", "model.num_heads=2",
    "batch.src_tokens=2000", "batch.tgt_tokens=2000", "batch.micro_batches=2",
)  # fmt: skip

_FINITE = "item: deepspeed/runtime/utils.py is_invalid_grad_norm"


@cache
def record_small(stage: int) -> Recorded:
    """An update of one rank in bf16, in two micro-batches."""
    return record_update(Layout("base", (f"zero{stage}", "bf16"), 1, SMALL, vocabulary=1000))


@faked
def test_an_update_runs_on_one_device_and_waits_as_often_as_it_must() -> None:
    """Fake tensors of different devices do not mix, so an update that ends has one device."""
    recorded = record_small(1)
    assert recorded.waits == {_FINITE: 1}
    assert len(recorded.src_tokens) == 2
    assert recorded.calls("varlen_attn") + recorded.calls("flash_attention_forward") == 2 * 3, "one for each attention"
    assert recorded.launches <= 560


@faked
@pytest.mark.parametrize("changes", [(), pytest.param(("loss.r_drop=1",), marks=pytest.mark.extended)], ids=str)
def test_every_operator_of_an_update_is_pytorchs_own(changes: tuple[str, ...]) -> None:
    recorded = record_update(Layout("base", ("zero1", "bf16"), 2, (*SMALL, *changes), vocabulary=1000))
    assert set(recorded.namespaces) <= PYTORCH


@faked
@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.extended), 3])
def test_the_only_visible_gpu_is_used_by_any_local_rank(stage: int) -> None:
    """As under ``srun --gpus-per-task=1``; DeepSpeed would take the GPU with the number of the local rank."""
    layout = Layout("base", (f"zero{stage}", "bf16"), 2, SMALL, 1000, local_rank=1, visible=1)
    assert record_update(layout).launches > 0


@faked
@pytest.mark.parametrize(("stage", "at_weights"), [(1, 0), pytest.param(3, 35, marks=pytest.mark.extended)])
def test_weights_are_rounded_once_an_update_below_stage_3(stage: int, at_weights: int) -> None:
    """The other casts of a micro-batch: two embedded inputs, two gradients of the loss, two activations and theirs."""
    recorded = record_small(stage)
    casts = sum(o.calls for o in recorded.operators if (o.name, o.dtype) == ("_to_copy", "bfloat16"))
    assert casts == 2 * (8 + at_weights)
    assert recorded.calls("foreach_copy_") == (stage < 3)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with FakeTensorMode(), Recorder() as active:
        yield active


WAITING: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: bool(x.isfinite().all()),
    "copy to the host": lambda x: x.cpu(),
    "copy to the device": lambda x: torch.tensor(1.0, device=x.device),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_wait_is_counted(name: str, recorder: Recorder) -> None:
    torch.zeros(8).sum().item()  # on the CPU, so no wait
    x = torch.ones(8, device="cuda")
    assert not recorder.waits
    WAITING[name](x)
    assert sum(recorder.waits.values()) == 1


def test_operators_with_a_kernel_are_counted(recorder: Recorder) -> None:
    x = torch.ones(1024, 256, device="cuda")
    torch.mm(x, x.view(256, 1024))  # a view has none
    assert recorder.operators == {("ones", "float32"): 1, ("mm", "float32"): 1}
