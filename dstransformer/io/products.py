"""The folders that this project writes: corpora, runs, checkpoints, bundles and exports.

Each is recognised by its files, so that no command writes into one, or replaces what it did not create.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from pathlib import Path

from dstransformer.errors import ConfigError, DataError, UserError
from dstransformer.io.files import storage_errors
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

#: Entries that do not count against a new folder: from the file system, a scheduler or shell redirection.
_IGNORED = ("lost+found", "*.log", "*.out", "*.err")


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


def complete_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints in the folder ``checkpoints`` of a run, oldest first, damaged ones included."""
    return sorted(path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))


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


def check_run_folder(run: Path) -> None:
    """Check that a run may write into a folder.

    Args:
        run: The folder given with ``--run``; need not exist.

    Raises:
        ConfigError: The path is or contains a file, the folder holds something other than a run, or it is part of a
            corpus, a bundle, an export or the checkpoints of a run.
        StorageError: The folder cannot be read.
    """
    with storage_errors(run):
        _check_run_folder(run)


def _check_run_folder(run: Path) -> None:
    if Path(os.path.realpath(run)).is_symlink():
        raise ConfigError(f"--run {run} is a link that leads back to itself: remove it, or choose another folder")
    if run.is_symlink() and not run.exists():
        raise ConfigError(f"--run {run} is a link to {run.readlink()}, which does not exist: create that folder first")
    for folder in (run, *run.parents):
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"--run {run}: {folder} is a file; name a folder")
    if (owner := _describe_owner(run)) is not None:
        raise ConfigError(f"--run {run}: {owner}, which must not be changed; choose a new folder elsewhere")
    for name in (*RUN_FILES, "checkpoints/latest"):
        if (run / name).is_dir():
            raise ConfigError(f"--run {run}: {name} in it is a folder, but a run needs a file there: move it")
    for name in ("checkpoints", "bundle"):
        if (run / name).exists() and not (run / name).is_dir():
            raise ConfigError(f"--run {run}: {name} in it is a file, but a run needs a folder there: move it")
    if (run / "bundle").is_dir() and (foreign := _foreign_entries(run / "bundle", ALL_BUNDLE_FILES)):
        raise ConfigError(f"--run {run}: bundle in it holds {foreign[0]}, which a new bundle would replace: move it")
    if not run.is_dir() or is_run(run):
        return
    others = sorted(path.name for path in run.iterdir() if not any(map(path.match, _IGNORED)))
    if others:
        shown = ", ".join(others[:3]) + (" …" if len(others) > 3 else "")
        raise ConfigError(f"--run {run} is not a run folder and not empty ({shown}): choose a new or empty folder")


def check_bundle_folder(out: Path, option: str, *, overwrite: bool) -> None:
    """:func:`check_output_folder` for a bundle."""
    check_output_folder(out, option, "a bundle", is_bundle, ALL_BUNDLE_FILES, overwrite=overwrite)


def check_output_folder(
    out: Path, option: str, what: str, is_one: Callable[[Path], bool], files: Collection[str], *, overwrite: bool
) -> None:
    """Check that a command can write its folder without losing anything.

    Args:
        out: The folder; need not exist.
        option: The command-line option that names it, for messages.
        what: What the folder will be, for messages: ``a bundle``.
        is_one: Whether a folder is one already.
        files: All files that such a folder may hold; ``target/tokenizer.json`` is one of a folder in it.
        overwrite: Whether one that exists may be replaced.

    Raises:
        DataError: The folder exists and is something else, it is one and ``overwrite`` is false, or it is part of a
            corpus, a bundle, an export or the checkpoints of a run.
        StorageError: The folder cannot be read.
    """
    with storage_errors(out):
        _check_place(out, option)
        if not out.exists() or not any(out.iterdir()):
            return
        if not is_one(out):
            raise DataError(f"{option} {out} is not {what} and not empty: choose another folder")
        if others := _foreign_entries(out, files):
            raise DataError(
                f"{out} holds {others[0]}, which is not part of {what}: move it, or choose another {option}"
            )
        if not overwrite:
            raise DataError(f"{out} already exists: choose another {option}, or replace it with --overwrite")


def _check_place(out: Path, option: str) -> None:
    if Path(os.path.realpath(out)).is_symlink():
        raise DataError(f"{option} {out} is a link that leads back to itself: remove it, or choose another folder")
    for folder in (out.absolute(), *out.absolute().parents):
        if folder.exists() and not folder.is_dir():
            raise DataError(f"{option} {out}: {folder} is a file; name a folder")
    if (owner := _describe_owner(out, allow_itself=True)) is not None:
        raise DataError(f"{option} {out}: {owner}, which must not be changed; choose a folder elsewhere")


def _describe_owner(path: Path, *, allow_itself: bool = False) -> str | None:
    """What a folder is or lies in, in words; None if it is free. With ``allow_itself`` it may be a bundle or export."""
    place = Path(os.path.realpath(path))
    for folder in (place, *place.parents):
        kind = product_of(folder)
        if kind in (None, "run") or (allow_itself and kind in ("bundle", "export") and folder == place):
            continue
        what = {"checkpoints": "the checkpoints of a run", "export": "an export"}.get(kind, f"a {kind}")
        return f"{'it is' if folder == place else f'{folder} is'} {what}"
    return None


def _foreign_entries(folder: Path, files: Collection[str]) -> list[str]:
    """The entries of a folder, and of those folders in it that ``files`` names, which are not among ``files``."""
    inner = {name.partition("/")[0] for name in files if "/" in name and (folder / name).parent.is_dir()}
    entries = [path for place in ("", *inner) for path in (folder / place).iterdir()]
    return sorted({path.relative_to(folder).as_posix() for path in entries} - {*files, *inner})


def _has_all(folder: Path, names: tuple[str, ...]) -> bool:
    return all((folder / name).is_file() for name in names)


def _has_any(folder: Path, names: tuple[str, ...]) -> bool:
    return any((folder / name).is_file() for name in names)
