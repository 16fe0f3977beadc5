"""Whole updates on a faked CUDA device: no mixing of devices, how often the host waits, how many operators run.

See :mod:`support.cuda`. Nothing is computed, so nothing here is about results or time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.cuda.device import missing
from support.cuda.record import Recorder
from support.cuda.updates import Layout, Recorded, record_update
from torch._subclasses.fake_tensor import FakeTensorMode

faked = pytest.mark.skipif(bool(missing()), reason=missing() or "can be faked")

#: The namespaces of PyTorch's own operators: tensors, process groups, and the marks of a profiler.
PYTORCH = {"aten", "c10d", "profiler"}

#: Size of the joint vocabulary, that of the paper's English-German model.
VOCABULARY = 37_000

#: A model that takes a second, with every part of a large one.
SMALL = (
    "model.num_layers=1", "model.d_model=64", "model.d_ff=128", "model.num_heads=2",
    "batch.src_tokens=2000", "batch.tgt_tokens=2000",
)  # fmt: skip

_FINITE = "item: deepspeed/runtime/utils.py is_invalid_grad_norm"
_ZERO_3 = "deepspeed/runtime/zero/stage3.py"


def waits(stage: int, world_size: int, accumulation: int) -> dict[str, int]:
    """Every wait of an update: for what, in which function, how often."""
    if stage == 0:
        return {"item: dstransformer/training/engine.py _finish_gradients": 1}
    if stage == 1:
        return {_FINITE: 1}
    reduced = "independent_gradient_partition_epilogue"
    if stage == 2:
        overlapped = f"synchronize the device: deepspeed/runtime/zero/stage_1_and_2.py {reduced}"
        return {overlapped: accumulation, _FINITE: 1}
    gathered = "a stream: deepspeed/runtime/zero/partition_parameters.py wait"
    if world_size > 1:
        gathered = "the device: deepspeed/runtime/zero/partition_parameters.py _allgather_params_coalesced"
    return {
        f"synchronize a stream: {_ZERO_3} {reduced}": accumulation,
        f"copy to the device: {_ZERO_3} get_grad_norm_direct": 1,
        _FINITE: 1,
        f"synchronize {gathered}": 1,
    }


def record_small(stage: int, precision: str, world_size: int, micro_batches: int) -> Recorded:
    overrides = (*SMALL, f"batch.micro_batches={micro_batches}")
    return record_update(Layout("base", (f"zero{stage}", precision), world_size, overrides, vocabulary=1000))


def waits_with(fragment: str, folder: Path, *others: str) -> dict[str, int]:
    """The waits of an update in two micro-batches, with a fragment of one's own."""
    path = folder / "own.json"
    path.write_text(fragment)
    overrides = (*SMALL, "batch.micro_batches=2")
    return record_update(Layout("base", (*others, "bf16", str(path)), 1, overrides, vocabulary=1000)).waits


@faked
def test_an_update_runs_on_one_device_and_waits_as_often_as_it_must() -> None:
    """Fake tensors of different devices do not mix, so an update that ends has one device."""
    recorded = record_small(1, "bf16", 1, 2)
    assert recorded.waits == waits(1, 1, 2)
    assert len(recorded.src_tokens) == 2
    assert recorded.calls("varlen_attn") + recorded.calls("flash_attention_forward") == 2 * 3, "one for each attention"
    assert recorded.launches <= 560


@faked
@pytest.mark.parametrize("changes", [(), pytest.param(("loss.r_drop=1",), marks=pytest.mark.extended)], ids=str)
def test_every_operator_of_an_update_is_pytorchs_own(changes: tuple[str, ...]) -> None:
    overrides = (*SMALL, "batch.micro_batches=2", *changes)
    recorded = record_update(Layout("base", ("zero1", "bf16"), 2, overrides, vocabulary=1000))
    assert set(recorded.namespaces) <= PYTORCH


@faked
@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.extended), 3])
def test_the_only_visible_gpu_is_used_by_any_local_rank(stage: int) -> None:
    """As under ``srun --gpus-per-task=1``; DeepSpeed would take the GPU with the number of the local rank."""
    layout = Layout(
        "base", (f"zero{stage}", "bf16"), 2, (*SMALL, "batch.micro_batches=2"), 1000, local_rank=1, visible=1
    )
    assert record_update(layout).launches > 0


@faked
@pytest.mark.parametrize(("stage", "at_weights"), [(1, 0), pytest.param(3, 35, marks=pytest.mark.extended)])
def test_weights_are_rounded_once_an_update_below_stage_3(stage: int, at_weights: int) -> None:
    """The other casts of a micro-batch: two embedded inputs, two gradients of the loss, two activations and theirs."""
    recorded = record_small(stage, "bf16", 1, 2)
    casts = sum(o.calls for o in recorded.operators if (o.name, o.dtype) == ("_to_copy", "bfloat16"))
    assert casts == 2 * (8 + at_weights)
    assert recorded.calls("foreach_copy_") == (stage < 3)


@faked
@pytest.mark.extended
@pytest.mark.parametrize(("stage", "precision", "world_size", "accumulation"), [
    (0, "bf16", 1, 2), (0, "fp16", 8, 1), (1, "fp16", 1, 2), (1, "bf16", 8, 1),
    (2, "bf16", 1, 2), (2, "fp16", 8, 1), (3, "bf16", 1, 2), (3, "fp16", 8, 1), (3, "fp32", 8, 2),
])  # fmt: skip
def test_the_host_waits_for_nothing_else(stage: int, precision: str, world_size: int, accumulation: int) -> None:
    recorded = record_small(stage, precision, world_size, world_size * accumulation)
    assert recorded.waits == waits(stage, world_size, accumulation)


@faked
@pytest.mark.extended
def test_deepspeeds_throughput_timer_would_wait_twice_per_micro_batch(tmp_path: Path) -> None:
    found = waits_with('{"timers": {"throughput": {"enabled": true}}}', tmp_path, "zero1")
    timer = "synchronize the device: deepspeed/utils/timer.py"
    assert found == {**waits(1, 1, 2), f"{timer} start": 2, f"{timer} stop": 2}


@faked
@pytest.mark.extended
def test_stage_2_waits_in_each_micro_batch_only_to_reduce_gradients_meanwhile(tmp_path: Path) -> None:
    """With ``overlap_comm`` DeepSpeed waits for the device before it frees gradients that were reduced beside it."""
    found = waits_with('{"zero_optimization": {"stage": 2, "overlap_comm": false}}', tmp_path)
    assert found == {_FINITE: 1}


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


def test_devices_do_not_mix(recorder: Recorder) -> None:
    x = torch.ones(8, device="cuda")
    with pytest.raises(RuntimeError, match=r"cuda:0(,| and) cpu"):
        x + torch.ones(8)


def test_operators_and_memory_are_counted(recorder: Recorder) -> None:
    x = torch.ones(1024, 256, device="cuda")
    y = x.view(256, 1024).t()  # no kernel, no memory
    product = torch.mm(x, y.t())
    size = 1024 * 256 * 4
    assert recorder.operators == {("ones", "float32"): 1, ("mm", "float32"): 1}
    assert recorder.live_bytes == recorder.peak_bytes == size + 1024 * 1024 * 4
    del product
    assert recorder.live_bytes == size
    del x, y
    assert recorder.live_bytes == 0
    recorder.clear()
    assert recorder.peak_bytes == 0
