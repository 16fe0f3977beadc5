"""What the checkpoints of a run are, and whether they are intact."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from dstransformer.errors import ConfigError, DataError, shown
from dstransformer.model import open_bundle
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder, rank_by_score
from dstransformer.training.checkpoints.format import MANIFEST, Checkpoint, read_checkpoint, verify_checkpoint


@dataclass(frozen=True)
class Entry:
    """A checkpoint of a run.

    Attributes:
        name: The name of its folder.
        problem: Why it cannot be used; None if nothing is known to be wrong with it.
        checkpoint: The checkpoint; None if its manifest cannot be read.
        size: Bytes of its files.
        saved: When it was completed.
        corpus: The folder of the corpus, as its provenance has it.
        best: Whether it has the best score of those that are comparable.
    """

    name: str
    problem: str | None
    checkpoint: Checkpoint | None
    size: int
    saved: datetime
    corpus: str | None
    best: bool

    def to_json(self) -> dict[str, Any]:
        """The entry as ``dst checkpoints --json`` prints it."""
        entry: dict[str, Any] = {"name": self.name, "problem": self.problem, "bytes": self.size}
        entry["saved"] = self.saved.isoformat(timespec="seconds")
        if self.checkpoint is not None:
            state = self.checkpoint.state
            entry |= {
                "step": state.step, "epoch": state.position.epoch, "score": self.checkpoint.score,
                "metric": self.checkpoint.metric, "best": self.best, "interim": self.checkpoint.interim,
                "world_size": state.world_size, "zero_stage": state.zero_stage, "precision": state.precision,
                "skipped": state.engine.skipped,
                "corpus": self.corpus, "corpus_build_key": state.corpus,
            }  # fmt: skip
        return entry


def list_checkpoints(run: Path, *, verify: bool) -> list[Entry]:
    """List the checkpoints of a run, oldest first; ``verify`` compares every file with its hash.

    Raises:
        DataError: There are none.
    """
    folder = CheckpointFolder(run / "checkpoints")
    paths = folder.folders()
    if not paths:
        what = "holds no checkpoints" if run.exists() else "does not exist"
        raise DataError(f"{run} {what}: name the folder that dst train wrote")
    entries = []
    for path in paths:
        try:
            entries.append(_read_entry(path, verify=verify))
        except FileNotFoundError:
            if path.exists():
                raise
            # else a training has just deleted this older checkpoint
    best = rank_by_score([entry.checkpoint for entry in entries if entry.checkpoint and not entry.problem])[:1]
    return [replace(entry, best=entry.checkpoint in best) for entry in entries]


def _read_entry(path: Path, *, verify: bool) -> Entry:
    checkpoint, problem, corpus = None, None, None
    try:
        checkpoint = read_checkpoint(path)
        if verify:
            verify_checkpoint(checkpoint)
        corpus = open_bundle(checkpoint.bundle).provenance.get("corpus")
    except (DataError, ConfigError) as error:
        problem = str(error)
    files = [file.stat() for file in path.rglob("*") if file.is_file()]
    manifest = path / MANIFEST
    saved = datetime.fromtimestamp((manifest if manifest.exists() else path).stat().st_mtime).astimezone()
    return Entry(path.name, problem, checkpoint, sum(file.st_size for file in files), saved, corpus, False)


def describe_checkpoints(entries: list[Entry], *, verified: bool) -> str:
    """A table for the terminal, with a line below it for each problem."""
    lines = [f"{'step':>9}  {'score':<20}  {'size':>10}  {'saved':<16}  {'files':<7}  computed with"]
    for entry in entries:
        checkpoint, size = entry.checkpoint, f"{entry.size / 1e6:,.1f} MB"
        state = "damaged" if entry.problem else "intact" if verified else "present"
        saved = entry.saved.strftime("%Y-%m-%d %H:%M")
        if checkpoint is None:
            lines.append(f"{entry.name.removeprefix('step-').lstrip('0'):>9}  {'':<20}  {size:>10}  {saved}  {state}")
            continue
        named = checkpoint.named_score
        score = "" if named is None else f"{named.name} {named.number}"
        layout = f"{checkpoint.state.world_size} × ZeRO {checkpoint.state.zero_stage}, {checkpoint.state.precision}"
        lines.append(
            f"{checkpoint.state.step:>9,}  {score + (' *' if entry.best else ''):<20}  {size:>10}  {saved}  "
            f"{state:<7}  {layout}"
        )
    lines += [f"corpus {path}" for path in dict.fromkeys(entry.corpus for entry in entries) if path]
    if any(entry.best for entry in entries):
        lines.append("* the best score")
    lines += [shown(entry.problem, quote=False, limit=400) for entry in entries if entry.problem]
    return "\n".join(lines)
