"""Checks of output folders: a command never writes into or replaces anything that it did not create."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from dstransformer.errors import ConfigError, DataError
from dstransformer.io.files import storage_errors
from dstransformer.io.products import ALL_BUNDLE_FILES, RUN_FILES, is_bundle, is_run, product_of

#: Entries that do not count against a new folder: from the file system, a scheduler or shell redirection.
_IGNORED = ("lost+found", "*.log", "*.out", "*.err")


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
