"""The checkpoint format: the state of the optimizer, a bundle, and a manifest with the hashes of all files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from dstransformer.config import Precision, precision_of, zero_stage
from dstransformer.data import Manifest
from dstransformer.data.plan import Position
from dstransformer.errors import DataError, shown
from dstransformer.evaluation import Score
from dstransformer.io.files import file_sha256, is_plain_name, read_error
from dstransformer.io.json_text import read_record
from dstransformer.io.products import check_kind

if TYPE_CHECKING:
    from torch import Tensor

    from dstransformer.training.checkpoints.shards import Shard

STATE, BUNDLE = "state", "bundle"

MANIFEST = "manifest.json"

#: The key of the manifest for the hash of its other keys.
OWN_HASH = "sha256"

#: Operations of a day at 10^15 a second.
PFLOP_DAY = 1e15 * 24 * 3600


class _Section:
    """A section of a manifest, which has no other keys than its fields."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Cost(_Section):
    """What a training has cost up to a checkpoint, over all its processes and across resumes.

    Attributes:
        flops: Floating-point operations of all updates, see :func:`dstransformer.model.training_flops`. Exact, and the
            same in any layout.
        device_seconds: Seconds of the training loop times its devices, which are its processes. Updates, validation,
            checkpoints and waiting count. Starting up, the comparison at the end, and what an interrupted run
            computed after its last checkpoint do not.
    """

    flops: int = 0
    device_seconds: float = 0.0

    def metrics(self) -> dict[str, float]:
        """The totals for logs, by name."""
        return {
            "flops": float(self.flops),
            "pflop_days": self.flops / PFLOP_DAY,
            "device_hours": self.device_seconds / 3600,
        }


@dataclass(frozen=True)
class EarlyStoppingState(_Section):
    """The progress on validation, for early stopping.

    Attributes:
        metric: Name of the score; None before the first validation.
        best: The best score so far, higher being better; None if there is none yet.
        validations: Validations since then.
        signature: How the score is computed.
    """

    metric: str | None = None
    best: float | None = None
    validations: int = 0
    signature: str = ""


@dataclass(frozen=True)
class LossScaleState(_Section):
    """The loss scale of fp16.

    Attributes:
        value: The scale.
        finite: Updates since the last gradient that was not finite.
        hysteresis: The scale is lowered when this many more gradients were not finite.
    """

    value: float
    finite: int
    hysteresis: int


@dataclass(frozen=True)
class EngineState(_Section):
    """The state of the engine beside weights and moments.

    Attributes:
        skipped: Number of updates that were skipped, because their gradient was not finite.
        loss_scale: Of fp16; None with a fixed scale and in other precisions.
    """

    skipped: int = 0
    loss_scale: LossScaleState | None = None


@dataclass(frozen=True)
class RecoveryState(_Section):
    """Non-finite updates and rollbacks so far.

    Attributes:
        consecutive_nonfinite: Updates in a row, up to the last one, whose loss or gradient was not finite.
        rollbacks: Number of times that training diverged and went back to a checkpoint.
        rollback_step: The update of the checkpoint of the last rollback; None if there was none.
    """

    consecutive_nonfinite: int = 0
    rollbacks: int = 0
    rollback_step: int | None = None


@dataclass(frozen=True)
class TrainState(_Section):
    """The training state of a run beside weights and moments: everything else needed to resume.

    Attributes:
        step: Number of updates computed so far.
        position: Position of the next update in the data.
        world_size: Number of processes that computed the last update.
        zero_stage: Their ZeRO stage.
        precision: The training precision: fp32, bf16 or fp16.
        corpus: Build key from the manifest of the corpus.
        cost: What the updates have cost. Left out of comparisons, because time never repeats.
        early_stopping: The progress on validation.
        engine: The state of the engine.
        recovery: Non-finite updates and rollbacks so far.
    """

    step: int
    position: Position
    world_size: int
    zero_stage: int
    precision: Precision
    corpus: str
    cost: Cost = field(default_factory=Cost, compare=False)
    early_stopping: EarlyStoppingState = field(default_factory=EarlyStoppingState)
    engine: EngineState = field(default_factory=EngineState)
    recovery: RecoveryState = field(default_factory=RecoveryState)

    @classmethod
    def fresh(cls, ds_config: Mapping[str, Any], world_size: int, manifest: Manifest) -> TrainState:
        """The state before the first update."""
        return cls(0, Position(), world_size, zero_stage(ds_config), precision_of(ds_config), manifest.build_key)


@dataclass(frozen=True)
class Snapshot:
    """A copy in CPU memory of everything a checkpoint stores.

    Attributes:
        shards: Weights and moments that this rank writes.
        weights: All weights in fp32, by name, for the bundle; empty on ranks other than 0.
    """

    shards: list[Shard]
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk.

    Attributes:
        path: The folder of the checkpoint.
        state: The training state.
        score: The validation score it is ranked by; None if it was not evaluated.
        metric: The name of the score, such as ``bleu`` or ``bleu_first_500``; None without one.
        signature: How the score was computed.
        interim: Whether it was written because of a stop request only. A run that nobody stops does not have it, so
            runs resume from it but never average it.
        files: SHA-256 hash of every file, by its path in the folder.
    """

    path: Path
    state: TrainState
    score: float | None
    metric: str | None = None
    signature: str = ""
    interim: bool = False
    files: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def scored(
        cls, path: Path, state: TrainState, score: Score | None, files: Mapping[str, str], *, interim: bool
    ) -> Checkpoint:
        """A checkpoint with its score if it was evaluated."""
        value, metric, signature = (None, None, "") if score is None else (score.value, score.name, score.signature)
        return cls(path, state, value, metric, signature, interim=interim, files=files)

    @property
    def shards(self) -> Path:
        """The folder of weights and moments."""
        return self.path / STATE

    @property
    def bundle(self) -> Path:
        """The folder of the portable model."""
        return self.path / BUNDLE

    @property
    def named_score(self) -> Score | None:
        """The score with its name; None if it was not evaluated."""
        return None if self.score is None or self.metric is None else Score(self.metric, self.score, self.signature)

    @property
    def manifest_text(self) -> str:
        """The content of its manifest."""
        values = asdict(self.state)
        beside = {name: values.pop(name) for name in _BESIDE}
        manifest = {
            "state": values,
            **beside,
            "score": self.score,
            "metric": self.metric,
            "signature": self.signature,
            "interim": self.interim,
            "files": dict(sorted(self.files.items())),
        }
        return json.dumps(manifest | {OWN_HASH: hash_manifest(manifest)}, indent=2) + "\n"


@dataclass(frozen=True)
class _Stored:
    """The types of what is stored of a checkpoint."""

    state: TrainState
    score: float | None
    metric: str | None
    signature: str
    interim: bool
    files: dict[str, str]


_STORED = TypeAdapter(_Stored)

#: The sections of a manifest that belong to the state.
_BESIDE = ("cost", "early_stopping", "engine", "recovery")


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the manifest of a checkpoint, without verifying its files.

    Raises:
        DataError: The folder is not a checkpoint, its manifest is damaged, or its format is too new.
        UnreadableError: It cannot be read now.
    """
    check_kind(folder, "checkpoint")
    checkpoint = read_record(folder / MANIFEST, partial(_build_checkpoint, folder), nan=True)
    step = checkpoint.state.step
    if re.fullmatch(r"step-\d{8}", folder.name) and folder.name != f"step-{step:08d}":
        raise DataError(f"{folder} holds the checkpoint of step {step}: rename it to step-{step:08d} or remove it")
    return checkpoint


def _build_checkpoint(folder: Path, content: Mapping[str, Any]) -> Checkpoint:
    check_manifest(folder / MANIFEST, content)
    values = {name: content[name] for name in ("score", "metric", "signature", "interim", "files")}
    values["state"] = {**content["state"], **{name: content[name] for name in _BESIDE}}
    try:
        stored = _STORED.validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"] if part != "state")
        raise DataError(f"{folder / MANIFEST} is damaged ({where}: {fault['msg']})") from None
    checkpoint = Checkpoint(folder, **vars(stored))
    counts = asdict(checkpoint.state)
    if counts["cost"].pop("flops") < 0 or not all(0 <= number < 2**63 for number in _iter_counts(counts)):
        raise DataError(f"{folder / MANIFEST} is damaged: a count is negative, or beyond 64 bits")
    return checkpoint


def _iter_counts(values: Mapping[str, Any]) -> Iterator[int]:
    """All whole numbers in a state."""
    for value in values.values():
        if isinstance(value, Mapping):
            yield from _iter_counts(value)
        elif type(value) is int:
            yield value


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read the manifest of a checkpoint and compare every file with its hash.

    Raises:
        DataError: The folder is not a checkpoint, its format is too new, or a file is missing or damaged.
        UnreadableError: A file cannot be read now.
    """
    checkpoint = read_checkpoint(folder)
    verify_checkpoint(checkpoint)
    return checkpoint


def verify_checkpoint(checkpoint: Checkpoint) -> None:
    """Compare every file of a checkpoint with its hash.

    Raises:
        DataError: A file is missing or damaged.
        UnreadableError: A file cannot be read now.
    """
    verify_files(checkpoint.path, checkpoint.files)


def hash_manifest(manifest: Mapping[str, Any]) -> str:
    """The SHA-256 of a manifest without its own hash, as compact JSON with sorted keys."""
    content = {name: value for name, value in manifest.items() if name != OWN_HASH}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Compare a manifest with its own hash.

    Raises:
        DataError: They differ.
    """
    if content.get(OWN_HASH) != hash_manifest(content):
        raise DataError(f"{path} is damaged: its content does not match its hash")


def verify_files(folder: Path, files: Mapping[str, str]) -> None:
    """Compare the files in the folder of a checkpoint, which have paths in it, with their SHA-256.

    Raises:
        DataError: A file is missing or damaged.
        UnreadableError: A file cannot be read now.
    """
    for name, digest in files.items():
        if not all(map(is_plain_name, name.split("/"))):
            raise DataError(f"{folder / MANIFEST} names {shown(name)}, which is no file of the checkpoint")
        path = folder / name
        try:
            is_damaged = not path.is_file() or file_sha256(path) != digest
        except OSError as error:
            raise read_error(path, error) from None
        if is_damaged:
            raise DataError(f"{path} is missing or damaged")
