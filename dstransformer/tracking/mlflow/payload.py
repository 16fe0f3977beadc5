"""What the MLflow tracker's records carry: parameters, names of metrics, tables of samples."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dstransformer.evaluation import Evaluation, Sample
from dstransformer.parsing.trees import parse_tree

#: A curve has at most about this many points in MLflow, whose pages get slow with more. ``metrics.jsonl`` has them all.
MAX_POINTS = 4000

#: The columns of the table of sample translations, which has a row for each sentence at each validation.
SAMPLE_COLUMNS = ("step", "source", "reference", "translation")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten a nested mapping to dotted names. Strings are kept, all other values become JSON."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value if isinstance(value, str) else json.dumps(value)
    return flat


def named_metrics(split: str, evaluation: Evaluation) -> dict[str, float]:
    """The values of an evaluation under their names in MLflow: ``valid/bleu``."""
    return {f"{split}/{name}": value for name, value in evaluation.metrics.items()}


def named_signatures(split: str, evaluation: Evaluation) -> dict[str, str]:
    """The signatures of an evaluation's scores under the names of their metrics."""
    return {f"{split}/{name}": signature for name, signature in evaluation.signatures.items()}


def point_stride(points: float) -> int:
    """Of how many points of a curve MLflow gets one, so that it gets at most ``MAX_POINTS``."""
    return max(1, math.ceil(points / MAX_POINTS))


def steps_in(checkpoints: Path) -> list[int]:
    """The updates of the checkpoints in a folder, in order."""
    names = (path.name.removeprefix("step-") for path in checkpoints.glob("step-*"))
    return sorted(int(name) for name in names if name.isdigit())


def sample_rows(step: int, samples: Sequence[Sample]) -> list[list[Any]]:
    """Rows of the table of samples, in the order of ``SAMPLE_COLUMNS``."""
    return [[step, sample.source, sample.reference, sample.translation] for sample in samples]


def draw_samples(samples: Sequence[Sample]) -> str:
    """Sentences with the gold tree and the parser's, drawn by indentation."""
    blocks = []
    for sample in samples:
        gold, parsed = (parse_tree(text).draw() for text in (sample.reference, sample.translation))
        blocks.append(f"{sample.source}\n\ngold:\n{gold}\n\nparsed:\n{parsed}\n")
    return "\n\n".join(blocks)
