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
from typing import Any

from benchmarks.gpu.roofline import Operator

#: Updates before the recorded one. Adam, DeepSpeed's buffers and its throughput timer, which starts at the third, are
#: then as in any later update.
WARM_UP = 2


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
        between_bytes: Bytes on the device before the update, between two updates.
        peak_bytes: The most bytes on the device during the update.
        at_peak: The operator that reached it.
        src_tokens: Source tokens of each micro-batch of this rank.
        tgt_tokens: Target tokens of each.
        sentences: Sentence pairs of each.
    """

    operators: list[Operator]
    namespaces: list[str]
    waits: dict[str, int]
    between_bytes: int
    peak_bytes: int
    at_peak: str
    src_tokens: list[int]
    tgt_tokens: list[int]
    sentences: list[int]

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
    from dstransformer.distributed.launcher import Processes
    from dstransformer.distributed.world import World, _choose_device, _set_variables
    from dstransformer.training.engine import Engine

    config = load_config(layout.preset, list(layout.overrides), list(layout.fragments))
    (real,) = build_updates(build_budget(config.batch), 1, layout.vocabulary)
    with FakeTensorMode() as mode, recorder:
        processes = Processes(0, layout.local_rank, layout.world_size)
        device = _choose_device(processes, os.environ)
        _set_variables(os.environ, device)
        torch.cuda.set_device(device)
        world = World(processes, device)
        engine = Engine(config, compose(config, layout.world_size), layout.vocabulary, world)
        update = _own_share(real, layout.world_size, mode)
        for number in range(1, WARM_UP + 1):
            engine.step(update, number)
        recorder.clear()
        between = recorder.live_bytes
        engine.step(update, WARM_UP + 1)
    batches = update.batches
    return Recorded(
        operators=[
            Operator(name, dtype, calls, moved, flops)
            for (name, dtype, moved, flops), calls in sorted(recorder.operators.items())
        ],
        namespaces=sorted(recorder.namespaces),
        waits=dict(recorder.waits),
        between_bytes=between,
        peak_bytes=recorder.peak_bytes,
        at_peak=recorder.at_peak,
        src_tokens=[batch.src_packing.tokens for batch in batches],
        tgt_tokens=[batch.tgt_packing.tokens for batch in batches],
        sentences=[batch.src_packing.sentences for batch in batches],
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
