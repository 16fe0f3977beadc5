"""Scores translations with COMET, in an environment that has it; :mod:`dstransformer.evaluation.comet` starts it.

It imports nothing of this package, and runs under any Python from 3.8 on. Its argument is the checkpoint. Once that is
loaded it prints a line of JSON with the version of ``unbabel-comet``. Then it answers each line on stdin, an object
with ``samples`` and ``batch_size``, with the ``scores`` of the sentences and of the ``system``; or with an ``error``.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from importlib.metadata import version
from typing import Any


def main() -> None:
    """Load the model, then answer each line of stdin."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # libraries may print to stdout

        def answer(**values: Any) -> None:
            print(json.dumps(values), file=answers, flush=True)

        try:
            model = load(sys.argv[1])
        except Exception as error:
            lacks_comet = isinstance(error, ModuleNotFoundError) and error.name == "comet"
            answer(error=f"{type(error).__name__}: {error}", lacks_comet=lacks_comet)
            return
        answer(version=version("unbabel-comet"))
        for line in sys.stdin:
            try:
                scores, system = predict(model, **json.loads(line))
            except Exception as error:
                answer(error=f"{type(error).__name__}: {error}")
            else:
                answer(scores=scores, system=system)


def load(checkpoint: str) -> Any:
    """Load a model. Nothing is downloaded."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    for name in ("pytorch_lightning", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return importlib.import_module("comet").load_from_checkpoint(checkpoint, local_files_only=True)


def predict(model: Any, samples: Any, batch_size: int) -> Any:
    """The scores of samples, and their mean."""
    gpus = int(importlib.import_module("torch").cuda.is_available())
    output = model.predict(samples, batch_size=batch_size, gpus=gpus, progress_bar=False)
    return list(map(float, output.scores)), float(output.system_score)


if __name__ == "__main__":
    main()
