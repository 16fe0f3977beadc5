"""What a person reads on MLflow's page of a run: names, the description, how to open it."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from dstransformer.corpus import Manifest
from dstransformer.tracking.location import sqlite_path
from dstransformer.tracking.tracker import Evaluation, RunStart, RunStatus

#: What one filters runs by; the rest of what a run says of itself stands in its description.
FILTER_TAGS = ("preset", "git_revision", "dstransformer", "world_size", "device", "host")
FORBIDDEN_IN_MODEL_NAMES = "/:.%\"'"
UI_ADDRESS = "http://127.0.0.1:5000"


@dataclass(frozen=True)
class Outcome:
    """How far a run has come: ``status`` is None while it trains, ``bundle`` where it has made one."""

    status: RunStatus | None = None
    step: int = 0
    bundle: Path | None = None
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)


def default_run_name(run: RunStart, run_folder: Path) -> str:
    """Names a run that its user has not: ``base · runs/base · 2026-11-22 07:00``."""
    preset = Path(run.tags.get("preset", "")).stem
    return " · ".join(filter(None, [preset, _last_two(run_folder), time.strftime("%Y-%m-%d %H:%M")]))


def dataset_name(run: RunStart) -> str:
    """``data/wmt14 (en-de)``: the corpus folder, and the one that it is in, as many are called ``corpus``."""
    return f"{_last_two(run.corpus)} ({_languages(run.manifest)})"


def model_name(run: RunStart, run_folder: Path) -> str:
    """``base en-de``: the run's given name or its folder, without the characters that MLflow refuses."""
    name = f"{run.run_name or run_folder.absolute().name} {_languages(run.manifest)}"
    return "".join("-" if character in FORBIDDEN_IN_MODEL_NAMES else character for character in name)


def describe(run: RunStart, run_folder: Path, outcome: Outcome) -> str:
    """The run's description, in Markdown."""
    parts = [_scores(outcome), _progress(run, outcome), _facts(run, run_folder)]
    if outcome.bundle is not None:
        parts.append(_usage(outcome.bundle))
    return "\n\n".join(filter(None, parts)) + "\n"


def how_to_open(tracking_uri: str, experiment_id: str, run_id: str | None = None) -> str:
    """One line: the command that serves the run's page, where it takes one, and the page's address."""
    page = f"#/experiments/{experiment_id}{f'/runs/{run_id}' if run_id else ''}?workflowType=machine_learning"
    if tracking_uri.startswith("http"):
        return f"MLflow: {public_address(tracking_uri).rstrip('/')}/{page}"
    if (path := sqlite_path(tracking_uri)) is None:
        return f"MLflow: {public_address(tracking_uri)}, experiment {experiment_id}, run {run_id}"
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    command = f"mlflow ui --backend-store-uri {shlex.quote(f'sqlite:///{path}')}"
    return f"MLflow: `{command}`, then open {UI_ADDRESS}/{page}"


def public_address(tracking_uri: str) -> str:
    """The store's address without a password."""
    parts = urlsplit(tracking_uri)
    if parts.password is None:
        return tracking_uri
    return parts._replace(netloc=f"{parts.username}:***@{parts.netloc.rpartition('@')[2]}").geturl()


def _scores(outcome: Outcome) -> str:
    said, signatures = [], []
    for split, evaluation in sorted(outcome.evaluations.items()):  # test before validation
        name, value = evaluation.bleu
        partial = "" if name == "bleu" else f" (its first {name.removeprefix('bleu_first_')} sentences)"
        said.append(f"**{value:.2f}** on {split.removeprefix('final_')}{partial}")
        signatures.append(evaluation.signatures.get(name, ""))
    return f"BLEU {', '.join(said)}; sacrebleu `{' '.join(dict.fromkeys(signatures))}`" if said else ""


def _progress(run: RunStart, outcome: Outcome) -> str:
    of = f"update {outcome.step:,} of {run.config.training.max_updates:,}"
    said = {
        None: "Training.",
        "finished": f"Finished at {of}.",
        "failed": f"Failed after {of}.",
        "killed": f"Interrupted after {of}; the same command goes on from there.",
    }[outcome.status]
    return said if outcome.bundle is None else f"{said} {_origin(outcome.bundle)}"


def _origin(bundle: Path) -> str:
    """Which checkpoints a bundle is and why, as its provenance has it."""
    try:
        provenance = json.loads((bundle / "provenance.json").read_bytes())
        updates = [f"{step:,}" for step in provenance["averaged_steps"]]
        reason = (provenance.get("final") or {}).get("reason", "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    average = "the average of the checkpoints of updates" if len(updates) > 1 else "the checkpoint of update"
    return f"The bundle is {average} {', '.join(updates)}{f' ({reason})' if reason else ''}."


def _facts(run: RunStart, run_folder: Path) -> str:
    model, manifest, tags = run.config.model, run.manifest, dict(run.tags)
    host = tags.pop("host", "")
    names = ("device", "world_size", "threads", "cpu_kernels")
    hardware = {name: tags.pop(name) for name in names if name in tags}
    revision = tags.pop("git_revision", "unknown")
    rows = {
        "preset": f"{tags.pop('preset', '')}: {model.num_layers} layers, d_model {model.d_model}, d_ff {model.d_ff}, "
        f"{model.num_heads} heads",
        "corpus": f"`{run.corpus.absolute()}`, {_languages(manifest)}, vocabulary {manifest.tokenizer.vocab_size:,}; "
        + ", ".join(f"{name} {split.pairs:,} pairs" for name, split in manifest.splits.items()),
        "hardware": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in hardware.items()),
        "software": ", ".join(f"{name} {value}" for name, value in tags.items()) + f", revision {revision[:12]}",
        "run folder": f"`{run_folder.absolute()}`" + (f" on {host}" if host else ""),
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())])


def _usage(bundle: Path) -> str:
    folder = shlex.quote(str(bundle.absolute()))
    return "\n".join(
        [
            "Use the bundle:",
            "",
            "```",
            f"dst translate {folder} input.txt --output output.txt",
            f"dst evaluate {folder} --src test.src --ref test.tgt",
            "```",
            "",
            "```python",
            "from dstransformer.decoding import Translator",
            "",
            f"Translator.load({str(bundle.absolute())!r}).translate(['A sentence.'])",
            "```",
        ]
    )


def _languages(manifest: Manifest) -> str:
    return f"{manifest.src_lang}-{manifest.tgt_lang}"


def _last_two(folder: Path) -> str:
    return "/".join(folder.absolute().parts[-2:]).lstrip("/")
