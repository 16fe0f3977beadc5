"""Tracking records, and what they carry: parameters, metrics, samples, the corpus, its sources and held-out sets."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from dstransformer.config import MixtureStage
from dstransformer.corpus import Manifest, PartInfo, SourceInfo
from dstransformer.evaluation import Evaluation, Sample
from dstransformer.io.json_text import JsonError, parse_json
from dstransformer.parsing.trees import parse_tree
from dstransformer.tracking.events import RunStart
from dstransformer.tracking.mlflow.page import dataset_name

Record = dict[str, Any]  #: JSON; "op" names the operation that MlflowStore applies.

METRICS_PER_BATCH = 1000  # MLflow's limit per request

#: The maximum number of input files that are listed for a source.
MAX_FILES = 100

_SPLITS = {"valid": "validation", "final_validation": "validation", "final_test": "test"}


def training_datasets(run: RunStart) -> Iterator[dict[str, Any]]:
    """The corpus, and each of its sources if they are several, as records."""
    manifest, name, path = run.manifest, dataset_name(run), str(run.corpus.absolute())
    yield {**corpus_dataset(run), "path": path, "profile": _corpus_profile(manifest), "context": "training"}
    if len(manifest.parts) < 2:
        return
    for part, source in zip(manifest.parts, manifest.sources, strict=True):
        profile = _source_profile(part, source, run.config.training.mixture)
        tags = {key: str(profile[key]) for key in ("weight", "tag") if key in profile}
        yield {
            "name": f"{name} source {part.name}",
            "digest": _source_digest(part, source),
            "path": path,
            "profile": profile,
            "context": "training",
            "tags": tags,
        }


def corpus_dataset(run: RunStart) -> dict[str, str]:
    """Name and digest of the corpus."""
    return {"name": dataset_name(run), "digest": manifest_digest(run.manifest)}


def held_out_dataset(run: RunStart, logged: str, evaluation: Evaluation) -> dict[str, str] | None:
    """Name and digest of the set that an evaluation is of; None if its digest is unknown.

    Args:
        run: The run.
        logged: The name under which it is logged: ``valid``, ``final_test``.
        evaluation: The evaluation.
    """
    if not evaluation.digest:
        return None
    return {"name": f"{dataset_name(run)} {held_out_split(logged)}", "digest": evaluation.digest}


def held_out_record(run: RunStart, logged: str, evaluation: Evaluation) -> dict[str, Any] | None:
    """The set that an evaluation is of as a record; None if its digest is unknown."""
    dataset = held_out_dataset(run, logged, evaluation)
    if dataset is None:
        return None
    split = held_out_split(logged)
    info = run.manifest.splits.get(split)
    profile = {} if info is None else {"pairs": info.pairs}
    return {**dataset, "path": str(run.corpus.absolute()), "profile": profile, "context": split}


def manifest_digest(manifest: Manifest) -> str:
    """A hash of the content of all shards (32 hexadecimal digits), independent of how and where they were built."""
    digest = hashlib.sha256()
    for split, info in sorted(manifest.splits.items()):
        for shard in info.shards:
            digest.update(f"{split}/{shard.name} {shard.sha256}\n".encode())
    return digest.hexdigest()[:32]


def _source_digest(part: PartInfo, source: SourceInfo) -> str:
    """A hash of what a source was read from, and of how many pairs (32 hexadecimal digits)."""
    content = [
        source.name,
        source.revision,
        [[file.name, file.sha256] for file in source.inputs],
        part.read,
        part.pairs,
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _corpus_profile(manifest: Manifest) -> dict[str, Any]:
    """The sizes that MLflow shows for a corpus."""
    return {
        "languages": f"{manifest.src_lang}-{manifest.tgt_lang}",
        "vocab_size": manifest.tokenizer.vocab_size,
        **({} if manifest.src_tokenizer is None else {"src_vocab_size": manifest.src_tokenizer.vocab_size}),
        "pairs": {name: split.pairs for name, split in manifest.splits.items()},
        "src_tokens": {name: split.src_tokens for name, split in manifest.splits.items()},
        "tgt_tokens": {name: split.tgt_tokens for name, split in manifest.splits.items()},
    }


def _source_profile(part: PartInfo, source: SourceInfo, mixture: Sequence[MixtureStage]) -> dict[str, Any]:
    """Pairs and inputs of a source, its tag, and its weight: the recipe's, or those of the stages of a mixture."""
    profile: dict[str, Any] = {"read": part.read, "pairs": part.pairs}
    if mixture:
        profile["weights by stage"] = [_stage(part.name, stage) for stage in mixture]
    else:
        profile["weight"] = part.weight
    if part.tag is not None:
        profile["tag"] = part.tag
    if source.revision is not None:
        profile["revision"] = source.revision
    inputs = {file.name: file.sha256 for file in source.inputs[:MAX_FILES]}
    return profile | {"files": len(source.inputs), "inputs": inputs}


def _stage(source: str, stage: MixtureStage) -> Mapping[str, Any]:
    epochs = {} if stage.epochs is None else {"epochs": stage.epochs}
    if stage.weights is None:
        return epochs | {"temperature": stage.temperature}
    return epochs | {"weight": stage.weights.get(source, 0.0)}


def held_out_split(logged: str) -> str:
    """The split of the corpus that evaluations logged under a name are of: ``validation`` for ``valid``."""
    return _SPLITS.get(logged, logged)


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
    """MLflow gets every n-th point of a curve, so that it gets at most ``MAX_POINTS``. Returns n."""
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


def unix_ms() -> int:
    """Unix time in milliseconds, as used by MLflow."""
    return int(time.time() * 1000)


def parse_record(line: str | bytes) -> Record | None:
    """Read a line of JSON; None if it is damaged."""
    try:
        record = parse_json(line.decode(errors="replace") if isinstance(line, bytes) else line, nan=True)
    except JsonError:
        return None
    return record if _is_record(record) else None


def _is_record(record: object) -> TypeGuard[Record]:
    """Whether it is an object that names its operation, with tags, and metrics as ``[name, value, time, step]``."""
    if not isinstance(record, dict) or not isinstance(record.get("op"), str):
        return False
    if not isinstance(record.get("tags", {}), dict):
        return False
    metrics = record.get("metrics") if record["op"] == "metrics" else []
    return isinstance(metrics, list) and all(map(_is_metric, metrics))


def _is_metric(metric: object) -> bool:
    return isinstance(metric, list) and [type(part) for part in metric] in (
        [str, float, int, int],
        [str, int, int, int],
    )
