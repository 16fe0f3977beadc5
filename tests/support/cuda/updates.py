"""Runs updates of the engine on faked devices, in a fresh process, and hands back their record."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

#: Updates before the recorded one. Adam, DeepSpeed's buffers and its throughput timer, which starts at the third, are
#: then as in any later update.
WARM_UP = 2


class Operator(NamedTuple):
    """Calls of an operator: its name in ATen, the precision of its result, and their number."""

    name: str
    dtype: str
    calls: int


@dataclass(frozen=True)
class Layout:
    """What to run.

    Attributes:
        preset: The experiment.
        fragments: Its DeepSpeed fragments: a ZeRO stage and a precision.
        world_size: Number of processes; the recorded one is rank 0.
        overrides: ``section.key=value`` overrides of the preset.
        vocabulary: Size of the joint vocabulary.
        local_rank: That of the recorded process.
        visible: Number of GPUs that it sees.
    """

    preset: str
    fragments: Sequence[str]
    world_size: int = 1
    overrides: Sequence[str] = ()
    vocabulary: int = 37_000
    local_rank: int = 0
    visible: int = 8


@dataclass(frozen=True)
class Recorded:
    """What one update asked of the device of rank 0.

    Attributes:
        operators: What ran.
        namespaces: The namespaces of all operators, those that start no kernel included.
        waits: How often the host waited for the device, by reason.
        src_tokens: Source tokens of each micro-batch of this rank.
    """

    operators: list[Operator]
    namespaces: list[str]
    waits: dict[str, int]
    src_tokens: list[int]

    @property
    def launches(self) -> int:
        """Number of operators."""
        return sum(operator.calls for operator in self.operators)

    def calls(self, name: str) -> int:
        """Number of calls of the operator with this name, without leading underscores."""
        return sum(operator.calls for operator in self.operators if operator.name.lstrip("_") == name)


def record_update(layout: Layout) -> Recorded:
    """Record one update of a layout, in a fresh process.

    Raises:
        AssertionError: The process failed; the message has its output.
    """
    from support.cuda.device import build_extension
    from support.processes.forks import environment
    from support.processes.launching import run_command

    processes = {
        "RANK": "0",
        "LOCAL_RANK": str(layout.local_rank),
        "WORLD_SIZE": str(layout.world_size),
        "DS_ACCELERATOR": "cuda",
        "TORCH_COMPILE_DISABLE": "1",  # there is no device to compile for
    }
    with tempfile.TemporaryDirectory(prefix="dst-faked-") as folder:
        result = Path(folder, "record.json")
        files = [str(build_extension()), str(result)]
        command = [sys.executable, "-m", "support.cuda.updates", *files, json.dumps(asdict(layout))]
        done = run_command(command, env=environment(processes))
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        plain = json.loads(result.read_text(encoding="utf-8"))
    return Recorded(**plain | {"operators": list(starmap(Operator, plain["operators"]))})


def main(arguments: Sequence[str]) -> None:
    """In the fresh process: run the updates and write their record."""
    extension, result, layout = arguments[0], Path(arguments[1]), Layout(**json.loads(arguments[2]))
    ctypes.CDLL(extension)  # before PyTorch, which looks for CUDA while it is imported
    from support.cuda.device import fake_device, join_group
    from support.cuda.record import Recorder

    recorder = Recorder()
    fake_device(recorder.wait, layout.visible)
    join_group(0, layout.world_size)
    recorded = _run(layout, recorder)
    result.write_text(json.dumps(asdict(recorded)), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # nothing to clean up, and DeepSpeed would wait for the devices


def _run(layout: Layout, recorder: Any) -> Recorded:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from benchmarks.gpu.text import build_updates
    from dstransformer.config import compose, load_config
    from dstransformer.data.plan import build_budget
    from dstransformer.distributed.hardware import choose_device, set_device_variables
    from dstransformer.distributed.launcher import Processes
    from dstransformer.distributed.world import World
    from dstransformer.training.engine import Engine

    config = load_config(layout.preset, list(layout.overrides), list(layout.fragments))
    (real,) = build_updates(build_budget(config.batch), 1, layout.vocabulary)
    with FakeTensorMode() as mode, recorder:
        processes = Processes(0, layout.local_rank, layout.world_size)
        device = choose_device(processes, os.environ)
        set_device_variables(os.environ, device)
        torch.cuda.set_device(device)
        world = World(processes, device)
        engine = Engine(config, compose(config, layout.world_size), layout.vocabulary, world)
        update = _own_share(real, layout.world_size, mode)
        for number in range(1, WARM_UP + 1):
            engine.step(update, number)
        recorder.clear()
        engine.step(update, WARM_UP + 1)
    return Recorded(
        operators=[Operator(name, dtype, calls) for (name, dtype), calls in sorted(recorder.operators.items())],
        namespaces=sorted(recorder.namespaces),
        waits=dict(recorder.waits),
        src_tokens=[batch.src_packing.tokens for batch in update.batches],
    )


def _own_share(update: Any, world_size: int, mode: Any) -> Any:
    """The part of an update that rank 0 computes, as fake tensors in CPU memory."""
    from dataclasses import replace

    from dstransformer.data.packing import PackedBatch, Packing
    from dstransformer.data.plan import deal

    def fake_packing(packing: Packing) -> Packing:
        return Packing(mode.from_tensor(packing.cu), packing.max_len, packing.tokens)

    def fake(batch: PackedBatch) -> PackedBatch:
        return PackedBatch(
            mode.from_tensor(batch.src),
            fake_packing(batch.src_packing),
            mode.from_tensor(batch.tgt_in),
            mode.from_tensor(batch.tgt_out),
            fake_packing(batch.tgt_packing),
        )

    own = deal(len(update.batches), 0, world_size)
    return replace(update, batches=[fake(update.batches[number]) for number in own])


if __name__ == "__main__":
    main(sys.argv[1:])
