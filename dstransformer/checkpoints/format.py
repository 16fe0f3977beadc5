"""The checkpoint format: DeepSpeed's state, a portable bundle, and a manifest with the hashes of all files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from dstransformer.batching import Position
from dstransformer.config import precision_of, zero_stage
from dstransformer.corpus import Manifest
from dstransformer.errors import DataError, check_format_version
from dstransformer.evaluation import Score
from dstransformer.files import file_sha256

#: 1: the first format, without a version key. 2: adds ``format_version``, and the
#: position in the data is a section of its own. Older formats stay readable.
FORMAT_VERSION = 2

MANIFEST, ENGINE, BUNDLE = "manifest.json", "zero", "bundle"


#: Operations of a day at 10^15 a second.
PFLOP_DAY = 1e15 * 24 * 3600


@dataclass(frozen=True)
class Cost:
    """What a training has cost up to a checkpoint, over all its processes and across resumes.

    Attributes:
        flops: Floating-point operations of all updates, see :func:`dstransformer.model.training_flops`. Exact, and the
            same in any layout.
        device_seconds: Seconds of the training loop times its devices, which are its processes. Updates, validation,
            checkpoints and waiting count. Starting up, the comparison at the end, and what an interrupted run
            computed after its last checkpoint do not.
        uncounted_updates: The first so many updates are in neither number: an earlier version computed them.
    """

    flops: int = 0
    device_seconds: float = 0.0
    uncounted_updates: int = 0

    def metrics(self) -> dict[str, float]:
        """The totals for logs, by name; ``uncounted_updates`` only if there are any."""
        totals = {
            "flops": float(self.flops),
            "pflop_days": self.flops / PFLOP_DAY,
            "device_hours": self.device_seconds / 3600,
        }
        return totals | ({"uncounted_updates": float(self.uncounted_updates)} if self.uncounted_updates else {})


@dataclass(frozen=True)
class Patience:
    """The progress on validation, for stopping early.

    Attributes:
        metric: Name of the score; None before the first validation.
        best: The best score so far, higher being better; None if there is none yet.
        validations: Validations since then.
    """

    metric: str | None = None
    best: float | None = None
    validations: int = 0

    def after(self, metric: str, score: float) -> Patience:
        """The progress after one more validation. Another metric starts anew; NaN is no improvement."""
        if metric != self.metric:
            return Patience(metric, None if math.isnan(score) else score)
        if score > (-math.inf if self.best is None else self.best):
            return Patience(metric, score)
        return Patience(metric, self.best, self.validations + 1)


@dataclass(frozen=True)
class TrainState:
    """The training state of a run beside weights and optimizer state: everything else needed to resume.

    Attributes:
        step: Number of updates computed so far.
        position: Position of the next update in the data.
        world_size: Number of processes that wrote the optimizer state.
        zero_stage: ZeRO stage at which it was written.
        precision: The training precision: fp32, bf16 or fp16.
        corpus: Build key from the manifest of the corpus.
        cost: What the updates have cost. Left out of comparisons, because time never repeats.
        patience: The progress on validation.
    """

    step: int
    position: Position
    world_size: int
    zero_stage: int
    precision: str
    corpus: str
    cost: Cost = field(default_factory=Cost, compare=False)
    patience: Patience = field(default_factory=Patience)

    @classmethod
    def fresh(cls, ds_config: Mapping[str, Any], world_size: int, manifest: Manifest) -> TrainState:
        """The state before the first update."""
        return cls(0, Position(), world_size, zero_stage(ds_config), precision_of(ds_config), manifest.build_key)

    @classmethod
    def from_json(cls, manifest: Mapping[str, Any]) -> TrainState:
        """Parse the state in a manifest.

        Format version 1 has the position's keys at the top level of the state. Checkpoints of earlier versions of this
        package have no cost, so none of their updates is counted, and no patience.

        Raises:
            TypeError: Keys are missing or unknown.
            KeyError: The state or position keys are missing.
        """
        values, cost = dict(manifest["state"]), manifest.get("cost")
        position = values.pop("position", None) or {name: values.pop(name) for name in ("epoch", "update")}
        spent = Cost(uncounted_updates=values["step"]) if cost is None else Cost(**cost)
        return cls(
            position=Position(**position), cost=spent, patience=Patience(**manifest.get("patience", {})), **values
        )


@dataclass(frozen=True)
class Snapshot:
    """A copy in CPU memory of everything a checkpoint stores.

    Attributes:
        states: The DeepSpeed states that this rank writes, by file name.
        weights: All weights in fp32, by name; empty on ranks other than 0.
    """

    states: dict[str, Any]
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk.

    Attributes:
        path: The folder of the checkpoint.
        state: The training state.
        score: The validation score it is ranked by; None if it was not evaluated.
        metric: The name of the score, such as ``bleu`` or ``bleu_first_500``; None in format version 1.
    """

    path: Path
    state: TrainState
    score: float | None
    metric: str | None = None

    @property
    def engine(self) -> Path:
        """The folder of DeepSpeed's state."""
        return self.path / ENGINE

    @property
    def bundle(self) -> Path:
        """The folder of the portable model."""
        return self.path / BUNDLE

    @property
    def sha256(self) -> str:
        """The hash of the manifest, which contains the hash of every file."""
        return file_sha256(self.path / MANIFEST)


def manifest_text(state: TrainState, score: Score | None, files: Mapping[str, str]) -> str:
    """The content of ``manifest.json``. ``files`` maps paths within the checkpoint to SHA-256 hashes."""
    values = asdict(state)
    beside = {name: values.pop(name) for name in ("cost", "patience")}  # older programs ignore them
    manifest = {
        "format_version": FORMAT_VERSION,
        "state": values,
        **beside,
        "score": None if score is None else score.value,
        "metric": None if score is None else score.name,
        "files": dict(sorted(files.items())),
    }
    return json.dumps(manifest, indent=2) + "\n"


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the manifest of a checkpoint, without verifying its files.

    Raises:
        DataError: The folder is not a checkpoint, its manifest is damaged, or its format is too new.
    """
    content = _read_manifest(folder)
    try:
        state = TrainState.from_json(content)
        checkpoint = Checkpoint(folder, state, content["score"], content.get("metric"))
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{folder / MANIFEST} is damaged") from None
    if re.fullmatch(r"step-\d{8}", folder.name) and folder.name != f"step-{state.step:08d}":
        raise DataError(
            f"{folder} holds the checkpoint of step {state.step}: rename it to step-{state.step:08d} or remove it"
        )
    return checkpoint


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not folder.exists():
        raise DataError(f"{folder} does not exist")
    if not folder.is_dir():
        raise DataError(f"{folder} is a file: name the folder of the checkpoint")
    if not path.is_file():
        raise DataError(f"{folder} is not a checkpoint: it has no {MANIFEST}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise DataError(f"{path} is damaged")
    if "state" not in content and "splits" in content:
        raise DataError(f"{folder} is a corpus, not a checkpoint")
    check_format_version(content.get("format_version", 1), FORMAT_VERSION, path)
    return content


def verify_checkpoint(checkpoint: Checkpoint) -> None:
    """Compare every file of a checkpoint with its hash.

    Raises:
        DataError: A file is missing or damaged.
    """
    files: dict[str, str] = _read_manifest(checkpoint.path)["files"]
    for name, digest in files.items():
        path = checkpoint.path / name
        if not path.is_file() or file_sha256(path) != digest:
            raise DataError(f"{path} is missing or damaged")
