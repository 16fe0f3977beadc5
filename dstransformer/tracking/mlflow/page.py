"""What MLflow's pages show of a run: names, datasets, the description, and how to open the page."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dstransformer.config.schema import MixtureStage
from dstransformer.data import Direction, Manifest, PartInfo, SourceInfo
from dstransformer.errors import shell_word, without_secrets
from dstransformer.evaluation import Evaluation
from dstransformer.tracking.events import RunStart, RunStatus, format_cost
from dstransformer.tracking.mlflow.location import sqlite_address, sqlite_path

#: Tags worth filtering runs by. The other facts are in the description.
FILTER_TAGS = ("preset", "git_revision", "dstransformer", "world_size", "device", "host")
FORBIDDEN_IN_MODEL_NAMES = "/:.%\"'"

#: The maximum number of input files that are listed for a source.
MAX_FILES = 100

#: The split of the corpus by the name under which its evaluations are logged.
_SPLITS = {"valid": "validation", "final_validation": "validation", "final_test": "test"}

#: A curve has at most about this many points in MLflow, whose pages get slow with more. ``metrics.jsonl`` has them all.
MAX_POINTS = 4000

UI_ADDRESS = "http://127.0.0.1:5000"
TRAINING = "Training."  # the progress of a run that has not ended, in its description
CHECKPOINT_NOTE = """Checkpoint of update {step:,}; its files are not in MLflow.

| | |
|---|---|
| folder | `{path}` |
| SHA-256 of its manifest | `{sha256}` |

While the tag `state` is `kept`, the folder exists, and `dst translate {folder}` uses it.
"""
BUNDLE_NOTE = """{description}
In Python, wherever MLflow is reached:

```python
import mlflow

mlflow.set_tracking_uri({source!r})
mlflow.pyfunc.load_model("models:/{model_id}").predict(["A sentence."])
```

Over HTTP: `mlflow models serve -m models:/{model_id} --env-manager local`, then POST `{{"inputs": ["A sentence."]}}` to
`/invocations`.
"""


@dataclass(frozen=True)
class RunSummary:
    """The state of a run, for its description.

    ``status`` is None during training, ``bundle`` until there is one. ``cost`` has the totals of ``CostTotal``.
    """

    status: RunStatus | None = None
    step: int = 0
    bundle: Path | None = None
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)


def default_run_name(run: RunStart, run_folder: Path) -> str:
    """The default name of a run: ``base · runs/base · 2026-11-22 07:00``."""
    preset = Path(run.tags.get("preset", "")).stem
    return " · ".join(filter(None, [preset, _last_two_parts(run_folder), time.strftime("%Y-%m-%d %H:%M")]))


def dataset_name(run: RunStart) -> str:
    """The dataset name: ``data/wmt14 (en-de)``. With the parent folder, because many corpora are named ``corpus``."""
    return f"{_last_two_parts(run.corpus)} ({run.manifest.languages})"


def model_name(run: RunStart, run_folder: Path) -> str:
    """The model name: ``base en-de``. The run's name or folder, with characters that MLflow forbids replaced."""
    name = f"{run.run_name or run_folder.absolute().name} {run.manifest.languages}"
    return "".join("-" if character in FORBIDDEN_IN_MODEL_NAMES else character for character in name)


def training_datasets(run: RunStart) -> Iterator[dict[str, Any]]:
    """The corpus, and each of its sources if there are several, as records."""
    manifest, name, path = run.manifest, dataset_name(run), str(run.corpus.absolute())
    corpus_profile = {
        "languages": manifest.languages,
        "vocab_size": manifest.tokenizer.vocab_size,
        **({} if manifest.src_tokenizer is None else {"src_vocab_size": manifest.src_tokenizer.vocab_size}),
        "pairs": {name: split.pairs for name, split in manifest.splits.items()},
        "src_tokens": {name: split.src_tokens for name, split in manifest.splits.items()},
        "tgt_tokens": {name: split.tgt_tokens for name, split in manifest.splits.items()},
    }
    yield {**corpus_dataset(run), "path": path, "profile": corpus_profile, "context": "training"}
    if len(manifest.parts) < 2:
        return
    for part, source in zip(manifest.parts, manifest.sources, strict=True):
        profile = _source_profile(part, source, run.config.training.mixture)
        tags = {key: str(profile[key]) for key in ("weight", "tag") if key in profile}
        inputs = [[file.name, file.sha256] for file in source.inputs]
        content = json.dumps([source.name, source.revision, inputs, part.read, part.pairs])
        yield {
            "name": f"{name} source {part.name}",
            "digest": hashlib.sha256(content.encode()).hexdigest()[:32],
            "path": path,
            "profile": profile,
            "context": "training",
            "tags": tags,
        }


def corpus_dataset(run: RunStart) -> dict[str, str]:
    """Name and digest of the corpus."""
    return {"name": dataset_name(run), "digest": manifest_digest(run.manifest)}


def held_out_dataset(run: RunStart, logged: str, evaluation: Evaluation) -> dict[str, str] | None:
    """Name and digest of the set that an evaluation, logged under a name, is of; None if its digest is unknown."""
    if not evaluation.digest:
        return None
    return {"name": f"{dataset_name(run)} {held_out_split(logged)}", "digest": evaluation.digest}


def manifest_digest(manifest: Manifest) -> str:
    """A hash of the content of all shards (32 hexadecimal digits), independent of how and where they were built."""
    digest = hashlib.sha256()
    for split, info in sorted(manifest.splits.items()):
        for shard in info.shards:
            digest.update(f"{split}/{shard.name} {shard.sha256}\n".encode())
    return digest.hexdigest()[:32]


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


def point_stride(points: float) -> int:
    """The n of which MLflow gets every n-th point of a curve, so that it gets at most ``MAX_POINTS``."""
    return max(1, math.ceil(points / MAX_POINTS))


def checkpoint_note(record: Mapping[str, Any]) -> str:
    """The description of a checkpoint, in Markdown, from its record."""
    return CHECKPOINT_NOTE.format(
        step=record["step"], path=record["path"], sha256=record["sha256"], folder=shell_word(record["path"])
    )


def bundle_note(description: str, source: str, model_id: str) -> str:
    """The model card of a bundle, in Markdown: the run's description, and how to use the model from MLflow."""
    return BUNDLE_NOTE.format(description=description, source=source, model_id=model_id).lstrip()


def describe_crash(description: str) -> str:
    """The description of a run whose process ended without a report, from the one of its start."""
    lost = "Ended without a report, as when its process is killed; run the same command to resume."
    return description.replace(TRAINING, lost, 1)


def describe(run: RunStart, run_folder: Path, summary: RunSummary) -> str:
    """The run's description, in Markdown."""
    parts = [_format_scores(summary), _format_progress(run, summary)]
    if summary.cost:
        parts.append(f"Training cost: {format_cost(summary.cost)}.")
    parts.append(_format_facts(run, run_folder))
    if summary.bundle is not None:
        parts.append(_format_usage(summary.bundle, run.manifest))
    return "\n\n".join(filter(None, parts)) + "\n"


def page_instructions(tracking_uri: str, experiment_id: str, run_id: str | None = None) -> str:
    """One line with the address of the run's page and, for a SQLite store, the command that serves it."""
    page = f"#/experiments/{experiment_id}{f'/runs/{run_id}' if run_id else ''}?workflowType=machine_learning"
    if tracking_uri.startswith("http"):
        return f"MLflow: {without_secrets(tracking_uri).rstrip('/')}/{page}"
    if (path := sqlite_path(tracking_uri)) is None:
        return f"MLflow: {without_secrets(tracking_uri)}, experiment {experiment_id}, run {run_id}"
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    command = f"mlflow ui --backend-store-uri {shell_word(sqlite_address(path))}"
    return f"MLflow: `{command}`, then open {UI_ADDRESS}/{page}"


def _format_scores(summary: RunSummary) -> str:
    scores, papers, signatures = [], [], []
    for split, evaluation in sorted(summary.evaluations.items()):  # test before validation
        main = evaluation.main
        sentences = main.name.partition("_first_")[2]
        partial = f" (its first {sentences} sentences)" if sentences else ""
        scores.append(f"**{main.number}** on {split.removeprefix('final_')}{partial}")
        signatures.append(main.signature)
        if (paper := evaluation.paper_bleu) is not None:
            papers.append(f"**{paper.value:.2f}** on {split.removeprefix('final_')}{partial}, `{paper.signature}`")
    if not scores:
        return ""
    scorer = "sacrebleu " if main.signature.startswith("nrefs:") else ""
    line = f"{main.metric} {', '.join(scores)}; {scorer}`{' '.join(dict.fromkeys(signatures))}`"
    return f"{line}\n\nBLEU as in the paper's tables (compounds split) {'; '.join(papers)}" if papers else line


def _format_progress(run: RunStart, summary: RunSummary) -> str:
    of = f"update {summary.step:,} of {run.config.training.max_updates:,}"
    return {
        None: TRAINING,
        "finished": f"Finished at {of}.",
        "failed": f"Failed after {of}.",
        "killed": f"Interrupted after {of}; run the same command to resume.",
    }[summary.status]


def _format_facts(run: RunStart, run_folder: Path) -> str:
    from dstransformer.data.augment import describe_augmentation
    from dstransformer.data.mixture import describe_mixture  # imports PyTorch

    model, manifest, tags = run.config.model, run.manifest, dict(run.tags)
    host = tags.pop("host", "")
    names = ("device", "world_size", "threads", "cpu_kernels", "gpu_kernels")
    hardware = {name: tags.pop(name) for name in names if name in tags}
    revision = tags.pop("git_revision", "unknown")
    rows = {
        "preset": f"{tags.pop('preset', '')}: {model.encoder_depth} + {model.decoder_depth} layers, d_model "
        f"{model.d_model}, d_ff {model.d_ff}, {model.num_heads} heads",
        "corpus": f"`{run.corpus.absolute()}`, {manifest.languages}, vocabulary {manifest.vocabulary}; "
        + ", ".join(f"{name} {split.pairs:,} pairs" for name, split in manifest.splits.items()),
        **({"mixture": mixture} if (mixture := describe_mixture(manifest.parts, run.config.training.mixture)) else {}),
        **({"augmentation": describe_augmentation(augment)} if (augment := run.config.training.augment) else {}),
        "hardware": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in hardware.items()),
        "software": ", ".join(f"{name} {value}" for name, value in tags.items()) + f", revision {revision[:12]}",
        "run folder": f"`{run_folder.absolute()}`" + (f" on {host}" if host else ""),
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())])


def example_target(directions: Sequence[Direction]) -> str:
    """The option ``--to`` of an example: a language that has one tag, or else a tag; empty if no direction has one."""
    tagged = [direction for direction in directions if direction.tag]
    if not tagged:
        return ""
    tags: dict[str, set[str | None]] = {}
    for direction in directions:
        tags.setdefault(direction.tgt_lang, set()).add(direction.tag)
    first = min(tagged, key=lambda direction: len(tags[direction.tgt_lang]))
    return f" --to {first.tgt_lang if len(tags[first.tgt_lang]) == 1 else shell_word(first.tag)}"


def _format_usage(bundle: Path, manifest: Manifest) -> str:
    folder, to = shell_word(bundle.absolute()), example_target(manifest.directions)
    commands = (
        [command.format(folder) for command in manifest.form.usage]
        if manifest.form.usage
        else [
            f"dst translate {folder} input.txt{to} --output output.txt",
            f"dst evaluate {folder}{to} --src test.src --ref test.tgt",
        ]
    )
    return "\n".join(["Use the bundle:", "", "```", *commands, "```"])


def _last_two_parts(folder: Path) -> str:
    return "/".join(folder.absolute().parts[-2:]).lstrip("/")
