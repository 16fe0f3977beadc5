"""Where the host waits for the device during an update: what PyTorch's synchronisation debug mode warns of."""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from pathlib import Path

import torch

from benchmarks.gpu.cases import SMOKE, Case, Work
from benchmarks.gpu.text import build_updates
from benchmarks.gpu.training import EngineStepper
from dstransformer.data.plan import build_budget
from dstransformer.distributed.launcher import Processes
from dstransformer.distributed.world import join_world, leave_world

#: Updates before the one that is looked at.
_WARM_UP = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="base", help="the preset; default: base")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes; on a CPU, where nothing waits")
    parser.add_argument("--json", type=Path, help="file for the waits")


def main(options: argparse.Namespace) -> int:
    work = SMOKE if options.smoke else Work()
    case = Case("train", options.model, "bf16", "padded" if options.smoke else "varlen", work=work)
    config = case.load_config()
    world = join_world(Processes(rank=0, local_rank=0, world_size=1))
    try:
        stepper = EngineStepper(config, work.vocabulary, world)
        update, *_ = build_updates(build_budget(config.batch), 1, work.vocabulary)
        for _ in range(_WARM_UP):
            stepper.step(update)
        on_device = world.device.type == "cuda"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if on_device:
                torch.cuda.set_sync_debug_mode("warn")
            stepper.step(update)
            if on_device:
                torch.cuda.set_sync_debug_mode("default")
    finally:
        leave_world()
    if on_device:
        print("Waits for events and streams are not among them: PyTorch does not report these.")
    places = Counter(f"{one.filename}:{one.lineno}" for one in caught if "synchroniz" in str(one.message))
    print(f"{places.total()} waits in an update of {case.name} on {world.device}")
    for place, count in places.most_common():
        print(f"  {count:4}  {place}")
    if options.json is not None:
        options.json.write_text(json.dumps(places, indent=1), encoding="utf-8")
    return 0
