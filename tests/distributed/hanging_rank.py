"""``dst`` with a rank 1 that hangs in update 5: the process lives, and does not go on."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from dstransformer.cli import main
from dstransformer.training import engine

compute = engine.Engine._compute


def hang(self: engine.Engine, update: Any, number: int) -> Any:
    if number == 5 and os.environ["SLURM_PROCID"] == "1":
        threading.Event().wait()
    return compute(self, update, number)


engine.Engine._compute = hang  # type: ignore[method-assign]
sys.exit(main())
