"""The folders that this project writes: corpora, runs, checkpoints, bundles and exports.

Each states its kind and its format in ``dst.json``. A folder without that file is somebody else's: no command writes
into it or replaces it.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from dstransformer.errors import ConfigError, DataError, UserError, check_format_version, shown
from dstransformer.io.files import hold_lock, read_error, replace_file, storage_errors
from dstransformer.io.json_text import read_json, read_record

Kind = Literal["run", "corpus", "checkpoint", "bundle", "export"]

#: The newest format of each kind. A later version reads every one before it.
FORMATS: dict[Kind, int] = {"run": 1, "corpus": 1, "checkpoint": 1, "bundle": 1, "export": 1}

#: The file that makes a folder one of ours.
MARKER = "dst.json"

#: The lock file of a run. It is never deleted.
RUN_LOCK = ".lock"

#: Holds, while a run starts, a text by which the other nodes know the run folder of rank 0.
_PROBE = ".probe"

#: How long to wait for a run folder's lock. A process that only asks who holds it locks it for a moment.
_LOCK_SECONDS = 0.5

#: All files that a run writes at the top of its folder.
RUN_FILES = (
    MARKER, RUN_LOCK, "metrics.jsonl", "config.yaml", "ds_config.json", "end.json", "tracking.json",
    "tracking-outbox.jsonl", "tracking-cursor.json", "evaluations.jsonl",
)  # fmt: skip

#: The signature of a bundle or an export.
SIGNATURE = "model.sig"

#: The files of every bundle, and all that it may hold.
BUNDLE_FILES = (MARKER, "model.safetensors", "config.yaml", "tokenizer.model", "provenance.json")
ALL_BUNDLE_FILES = (*BUNDLE_FILES, "tokenizer.src.model", SIGNATURE)

#: Entries that do not count against a new folder: from the file system, a scheduler or shell redirection, or a run that
#: begins at this moment.
_IGNORED = ("lost+found", "*.log", "*.out", "*.err", RUN_LOCK, _PROBE, f".{MARKER}.*.partial")


def write_marker(folder: Path, kind: Kind, **more: object) -> None:
    """Write ``dst.json``, atomically: the folder, which must exist, is of this kind, in its newest format.

    It states ``more`` besides, such as the ``tool`` that an export is for.

    Raises:
        OSError: The file cannot be written.
    """
    content = {"kind": kind, "format": FORMATS[kind], **more}
    replace_file(folder / MARKER, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_marker(folder: Path) -> dict[str, Any]:
    """What ``dst.json`` states about a folder; empty if there is no such file of ours, or it cannot be reached.

    Raises:
        DataError: It is no JSON. It may have been one of ours, so nothing may take its folder for a free one.
    """
    path = folder / MARKER
    try:
        content = read_json(path)
    except OSError:
        return {}
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}): restore it from a copy of the folder") from None
    return content if isinstance(content, dict) and content.get("kind") in tuple(FORMATS) else {}


def kind_of(folder: Path) -> str | None:
    """A :data:`Kind`, or ``checkpoints`` (those of a run); None of any other folder."""
    kind = read_marker(folder).get("kind")
    if kind is None and folder.name == "checkpoints" and kind_of(folder.parent) == "run":
        return "checkpoints"
    return kind


def export_tool(folder: Path) -> str | None:
    """The tool that an export is for: ``ct2``, ``hf`` or ``marian``; None of any other folder."""
    content = read_marker(folder)
    return content.get("tool") if content.get("kind") == "export" else None


def check_kind(folder: Path, kind: Kind, advice: str = "") -> dict[str, Any]:
    """Check that a folder is of a kind, and of a format that this package reads. Returns what its ``dst.json`` has.

    The message ends with ``advice``, on what to do about something else.

    Raises:
        DataError: It is something else, its ``dst.json`` is damaged, or a newer version wrote it.
        UnreadableError: It cannot be read now.
    """
    path, reason = folder / MARKER, None
    try:
        if not folder.exists():
            reason = "it does not exist"
        elif not folder.is_dir():
            reason = "it is a file"
        elif not path.is_file():
            reason = f"it has no {MARKER}"
    except OSError as error:
        raise read_error(path, error) from None
    if reason is not None:
        raise DataError(f"{folder} is not {_with_article(kind)}: {reason}" + (f"; {advice}" if advice else ""))

    def check(content: dict[str, Any]) -> None:
        if content.get("kind") not in tuple(FORMATS):
            raise DataError(f"{path} is damaged (its kind is {shown(content.get('kind'))}): restore it")
        if content["kind"] != kind:
            fault = f"{folder} is {_with_article(content['kind'])}, not {_with_article(kind)}"
            raise DataError(f"{fault}: {advice}" if advice else fault)
        check_format_version(content.get("format"), FORMATS[kind], path)

    return read_record(path, dict, check=check, advice="restore it from a copy of the folder")


def _with_article(kind: str) -> str:
    if kind == "checkpoints":
        return "the checkpoints of a run"
    return f"an {kind}" if kind == "export" else f"a {kind}"


def complete_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints in the folder ``checkpoints`` of a run, oldest first, damaged ones included."""
    return sorted(path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))


def enclosing_product(path: Path) -> tuple[str, Path] | None:
    """The kind and the folder of the nearest product that a path is or lies in; links are resolved."""
    real = Path(os.path.realpath(path))
    for folder in (real, *real.parents):
        if kind := kind_of(folder):
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
    product = enclosing_product(target.parent)
    if product is None:
        return
    kind, folder = product
    if kind != "run":
        raise UserError(f"{path} lies inside the {kind} {folder}: give a name outside of it")
    if folder == target.parent and target.name in RUN_FILES:
        raise UserError(f"{path} is a file of the run {folder}: give another name")


def check_run_folder(run: Path) -> None:
    """Check that a run may write into the folder given with ``--run``, which need not exist.

    Raises:
        ConfigError: The path is or contains a file, the folder holds something other than a run, or it is part of a
            corpus, a bundle, an export or the checkpoints of a run.
        StorageError: The folder cannot be read.
    """
    with storage_errors(run):
        _check_place(run, "--run", ConfigError)
        if run.is_symlink() and not run.exists():
            target = run.readlink()
            raise ConfigError(f"--run {run} is a link to {target}, which does not exist: create that folder first")
        for name in (*RUN_FILES, "checkpoints/latest"):
            if (run / name).is_dir():
                raise ConfigError(f"--run {run}: {name} in it is a folder, but a run needs a file there: move it")
        for name in ("checkpoints", "bundle"):
            if (run / name).exists() and not (run / name).is_dir():
                raise ConfigError(f"--run {run}: {name} in it is a file, but a run needs a folder there: move it")
        bundle = run / "bundle"
        if bundle.is_dir() and (foreign := _foreign_entries(bundle, ALL_BUNDLE_FILES)):
            raise ConfigError(
                f"--run {run}: bundle in it holds {foreign[0]}, which a new bundle would replace: move it"
            )
        if kind_of(run) == "run":
            check_kind(run, "run", "choose a new folder")
        elif run.is_dir():
            names = sorted(path.name for path in run.iterdir() if not any(map(path.match, _IGNORED)))
            if names:
                first = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
                raise ConfigError(
                    f"--run {run} is not a run folder and not empty ({first}): choose a new or empty folder"
                )


@contextmanager
def hold_run_folder(run: Path) -> Iterator[None]:
    """Create and lock a run folder, and leave a probe in it. One that is new and stays empty goes if the block fails.

    The probe tells whether the processes of other nodes see the same folder, see :func:`read_probe`.

    Raises:
        UserError: Another process is training in the folder.
        StorageError: The folder cannot be written.
    """
    busy = f"another process is training in {run} ({{owner}}): wait for it, stop it, or choose another --run"
    with ExitStack() as stack:
        with storage_errors(run):
            with suppress(FileExistsError):
                run.mkdir(parents=True)  # of two processes that start together, one makes it
                stack.push(lambda kind, *_: _remove_if_unused(run) if kind else None)
            stack.enter_context(hold_lock(run / RUN_LOCK, busy, wait=_LOCK_SECONDS, keep=True))
            if not (run / MARKER).exists():
                write_marker(run, "run")
            stack.callback(remove_probe, run)
            (run / _PROBE).write_text(uuid.uuid4().hex)
        yield


def read_probe(run: Path) -> str | None:
    """The probe of a run folder; None if this process does not see it."""
    try:
        return (run / _PROBE).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def remove_probe(run: Path) -> None:
    """Remove the probe of a run folder, once all processes have read it."""
    with suppress(OSError):
        (run / _PROBE).unlink(missing_ok=True)


def _remove_if_unused(run: Path) -> None:
    with suppress(OSError):
        if {path.name for path in run.iterdir()} == {RUN_LOCK, MARKER}:
            (run / MARKER).unlink()
            (run / RUN_LOCK).unlink()
            run.rmdir()


def check_bundle_folder(out: Path, option: str, *, overwrite: bool) -> None:
    """:func:`check_output_folder` for a bundle."""
    check_output_folder(
        out, option, "a bundle", lambda folder: kind_of(folder) == "bundle", ALL_BUNDLE_FILES, overwrite=overwrite
    )


def check_export_folder(out: Path, tool: str, files: Collection[str], *, overwrite: bool) -> None:
    """:func:`check_output_folder` for an export, given as ``OUT``."""
    check_output_folder(
        out, "OUT", f"an export for {tool}", lambda folder: export_tool(folder) == tool, files, overwrite=overwrite
    )


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
        _check_place(out, option, DataError, may_be=("bundle", "export"))
        if not out.exists() or not any(out.iterdir()):
            return
        if not is_one(out):
            raise DataError(f"{option} {out} is not {what} and not empty: choose another folder")
        if foreign := _foreign_entries(out, files):
            raise DataError(
                f"{out} holds {foreign[0]}, which is not part of {what}: move it, or choose another {option}"
            )
        if not overwrite:
            raise DataError(f"{out} already exists: choose another {option}, or replace it with --overwrite")


def _check_place(path: Path, option: str, error: type[UserError], *, may_be: Collection[str] = ()) -> None:
    """Check that a path is a folder or free, and in no product but a run; its folder may be one of some kinds."""
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise error(f"{option} {path} is a link that leads back to itself: remove it, or choose another folder")
    for folder in (path, *path.absolute().parents):
        if folder.exists() and not folder.is_dir():
            raise error(f"{option} {path}: {folder} is a file; name a folder")
    for folder in (real, *real.parents):
        kind = kind_of(folder)
        if kind not in (None, "run") and not (folder == real and kind in may_be):
            owner = f"{'it' if folder == real else folder} is {_with_article(kind)}"
            raise error(f"{option} {path}: {owner}, which must not be changed; choose a folder elsewhere")


def _foreign_entries(folder: Path, files: Collection[str]) -> list[str]:
    """The entries of a folder, and of those folders in it that ``files`` names, which are not among ``files``."""
    inner = {name.partition("/")[0] for name in files if "/" in name and (folder / name).parent.is_dir()}
    entries = [path for name in ("", *inner) for path in (folder / name).iterdir()]
    return sorted({path.relative_to(folder).as_posix() for path in entries} - {*files, *inner})
