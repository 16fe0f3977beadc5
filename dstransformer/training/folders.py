"""Where a run and a bundle may go: nothing that a command did not make is written into, or replaced."""

from __future__ import annotations

from pathlib import Path

from dstransformer.errors import ConfigError, DataError
from dstransformer.training.storage import storage_errors

#: What makes a folder a run's own: one of these files.
_RUN_FILES = (".lock", "metrics.jsonl")

#: What a run writes besides.
_OWN_FILES = (*_RUN_FILES, "config.yaml", "ds_config.json", "tracking.json", "tracking-sent.jsonl")

_BUNDLE_FILES = ("model.safetensors", "config.yaml", "tokenizer.model", "provenance.json")

#: What is in an empty folder all the same: of a file system, or what a scheduler or a shell keeps beside a run.
_HARMLESS = ("lost+found", "*.log", "*.out", "*.err")


def check_run_folder(run: Path) -> None:
    """Refuse a folder that a run does not belong into.

    Args:
        run: What ``--run`` names; need not exist.

    Raises:
        ConfigError: It is a file or in one, holds other things than a run, or is or lies in a corpus, a bundle or a
            folder of checkpoints.
        StorageError: It cannot be looked into.
    """
    with storage_errors(run):
        _check_run_folder(run)


def _check_run_folder(run: Path) -> None:
    for folder in (run, *run.parents):
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"--run {run}: {folder} is a file; name a folder")
    if (inside := _belongs_to_another(run)) is not None:
        raise ConfigError(f"--run {run}: {inside}, where nothing else may go; name a new folder elsewhere")
    for name in _OWN_FILES:
        if (run / name).is_dir():
            raise ConfigError(f"--run {run}: {name} in it is a folder, where a run has a file: move it")
    if not run.is_dir() or _is_run(run):
        return
    others = sorted(path.name for path in run.iterdir() if not any(map(path.match, _HARMLESS)))
    if others:
        shown = ", ".join(others[:3]) + (" …" if len(others) > 3 else "")
        raise ConfigError(f"--run {run} is no run's folder and holds other things ({shown}): name a new or empty one")


def check_bundle_folder(out: Path, option: str, *, overwrite: bool) -> None:
    """Refuse a folder that a bundle cannot be written to without loss.

    Args:
        out: The bundle; need not exist.
        option: That names it.
        overwrite: A bundle that is there may be replaced.

    Raises:
        DataError: It is there and not a bundle, or one that is to stay, or is or lies in a corpus, another bundle or a
            folder of checkpoints.
        StorageError: It cannot be looked into.
    """
    with storage_errors(out):
        _check_bundle_folder(out, option, overwrite)


def _check_bundle_folder(out: Path, option: str, overwrite: bool) -> None:
    for folder in (out.absolute(), *out.absolute().parents):
        if folder.exists() and not folder.is_dir():
            raise DataError(f"{option} {out}: {folder} is a file; name a folder")
    if (inside := _belongs_to_another(out, but_bundle=True)) is not None:
        raise DataError(f"{option} {out}: {inside}, where nothing else may go; name a folder elsewhere")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not _is_bundle(out):
        raise DataError(f"{option} {out}: it is no bundle and holds other things: name a folder elsewhere")
    if others := sorted({path.name for path in out.iterdir()} - set(_BUNDLE_FILES)):
        raise DataError(f"{out} holds {others[0]}, which is no part of a bundle: move it, or give another {option}")
    if not overwrite:
        raise DataError(f"{out} is there already: give another {option}, or replace it with --overwrite")


def _belongs_to_another(path: Path, *, but_bundle: bool = False) -> str | None:
    """What owns a folder or one above it, in words; None where nobody does. ``but_bundle``: it may be one itself."""
    place = path.resolve()
    for folder in (place, *place.parents):
        where = "it is" if folder == place else f"{folder} is"
        if (folder / "manifest.json").is_file() and (folder / "tokenizer.model").is_file():
            return f"{where} a corpus"
        if folder.name == "checkpoints" and (_is_run(folder.parent) or any(folder.glob("step-*/manifest.json"))):
            return f"{where} the checkpoints of a run"
        if (folder / "manifest.json").is_file() and (folder / "zero").is_dir():
            return f"{where} a checkpoint"
        if _is_bundle(folder) and not (but_bundle and folder == place):
            return f"{where} a bundle"
    return None


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _RUN_FILES) or (
        (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir()
    )


def _is_bundle(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _BUNDLE_FILES)
