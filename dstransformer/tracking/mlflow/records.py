"""The data sets of a run as records for MLflow: the corpus, its sources, and held-out sets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dstransformer.config import MixtureStage
from dstransformer.corpus import Manifest, PartInfo, SourceInfo
from dstransformer.evaluation import Evaluation
from dstransformer.tracking.events import RunStart
from dstransformer.tracking.mlflow.page import dataset_name

#: Input files of a source that are listed.
MOST_FILES = 100

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
    inputs = {file.name: file.sha256 for file in source.inputs[:MOST_FILES]}
    return profile | {"files": len(source.inputs), "inputs": inputs}


def _stage(source: str, stage: MixtureStage) -> Mapping[str, Any]:
    epochs = {} if stage.epochs is None else {"epochs": stage.epochs}
    if stage.weights is None:
        return epochs | {"temperature": stage.temperature}
    return epochs | {"weight": stage.weights.get(source, 0.0)}


def held_out_split(logged: str) -> str:
    """The split of the corpus that evaluations logged under a name are of: ``validation`` for ``valid``."""
    return _SPLITS.get(logged, logged)
