"""The folders that this project writes: corpora, runs, checkpoints, bundles and exports.

Each is recognised by its files, so that no command writes into one by accident.
"""

from __future__ import annotations

import os
from pathlib import Path

from dstransformer.errors import UserError
from dstransformer.io.json_text import read_json

#: The lock file of a run. It is never deleted, and marks the folder as a run folder.
RUN_LOCK = ".lock"

#: Files that identify a run folder; one of them is enough.
RUN_MARKERS = (RUN_LOCK, "metrics.jsonl")

#: All files that a run writes at the top of its folder.
RUN_FILES = (
    *RUN_MARKERS, "config.yaml", "ds_config.json", "end.json", "tracking.json", "tracking-outbox.jsonl",
    "tracking-cursor.json", "evaluations.jsonl",
)  # fmt: skip

#: Where a checkpoint keeps weights and moments.
CHECKPOINT_STATE = "state"

#: The signature of a bundle or an export.
SIGNATURE = "model.sig"

#: Files that identify a bundle, and all that it may hold.
BUNDLE_FILES = ("model.safetensors", "config.yaml", "tokenizer.model", "provenance.json")
ALL_BUNDLE_FILES = (*BUNDLE_FILES, "tokenizer.src.model", SIGNATURE)


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's."""
    return _has_any(folder, RUN_MARKERS) or (_has_all(folder, ("config.yaml",)) and (folder / "checkpoints").is_dir())


def is_bundle(folder: Path) -> bool:
    """Whether a folder is a bundle."""
    return _has_all(folder, BUNDLE_FILES)


def is_hf_export(folder: Path) -> bool:
    """Whether a folder is what ``dst export hf`` writes."""
    if not _has_all(folder, ("config.json", "model.safetensors")):
        return False
    try:
        content = read_json(folder / "config.json")
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "dstransformer" in content


def is_marian_export(folder: Path) -> bool:
    """Whether a folder is what ``dst export marian`` writes."""
    return _has_all(folder, ("dstransformer.json", "model.npz"))


def is_ct2_export(folder: Path) -> bool:
    """Whether a folder is what ``dst export ct2`` writes."""
    return _has_all(folder, ("dstransformer.json", "model.bin"))


def product_of(folder: Path) -> str | None:
    """``corpus``, ``checkpoint``, ``checkpoints`` (of a run), ``bundle``, ``export`` or ``run``; None for any other."""
    if _has_all(folder, ("manifest.json", "tokenizer.model")):
        return "corpus"
    if _has_all(folder, ("manifest.json",)) and (folder / CHECKPOINT_STATE).is_dir():
        return "checkpoint"
    if folder.name == "checkpoints" and (is_run(folder.parent) or any(folder.glob("step-*/manifest.json"))):
        return "checkpoints"
    if _has_all(folder, BUNDLE_FILES[:2]):
        return "bundle"
    if is_ct2_export(folder) or is_hf_export(folder) or is_marian_export(folder):
        return "export"
    trains = _has_any(folder, ("metrics.jsonl",)) or (folder / "checkpoints").is_dir()
    return "run" if trains and _has_all(folder, ("config.yaml",)) else None


def enclosing_product(path: Path) -> tuple[str, Path] | None:
    """The kind and the folder of the nearest product that a path is or lies in; links are resolved."""
    place = Path(os.path.realpath(path))
    for folder in (place, *place.parents):
        if kind := product_of(folder):
            return kind, folder
    return None


def check_text_output(path: Path) -> None:
    """Check that a text file may be written to a path: not into a corpus, a checkpoint, a bundle or an export.

    A run folder may hold translations, but none of its own files is replaced.

    Raises:
        UserError: The file would be part of a product, or the path is a link that leads back to itself.
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise UserError(f"{path} is a link that leads back to itself: remove it, or give another name")
    found = enclosing_product(target.parent)
    if found is None:
        return
    kind, folder = found
    if kind != "run":
        raise UserError(f"{path} lies inside the {kind} {folder}: give a name outside of it")
    if folder == target.parent and target.name in RUN_FILES:
        raise UserError(f"{path} is a file of the run {folder}: give another name")


def _has_all(folder: Path, names: tuple[str, ...]) -> bool:
    return all((folder / name).is_file() for name in names)


def _has_any(folder: Path, names: tuple[str, ...]) -> bool:
    return any((folder / name).is_file() for name in names)
