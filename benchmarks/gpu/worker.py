"""The process of one case: its arguments are the case as JSON, and the file for the result."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu.cases import Case
from dstransformer.errors import DstError


def work() -> None:
    case = Case.from_json(json.loads(sys.argv[1]))
    try:
        result = measure(case)
    except DstError as error:
        raise SystemExit(str(error)) from error
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


def measure(case: Case) -> dict[str, object]:
    """Run a case; return its measurements as plain data."""
    import torch

    if case.act == "decode":
        from benchmarks.gpu.decoding import measure_decoding

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return asdict(measure_decoding(case, device))
    from benchmarks.gpu.training import measure_training
    from dstransformer.distributed.launcher import Processes
    from dstransformer.distributed.world import join_world, leave_world

    world = join_world(Processes(rank=0, local_rank=0, world_size=1))
    try:
        return asdict(measure_training(case, world))
    finally:
        leave_world()


if __name__ == "__main__":
    work()
