"""The output folder: which folders may be written, which corpus they already hold, and how a new one replaces it.

Only files that a build made are removed. While a build runs, ``.OUT.partial`` beside ``OUT`` holds the unfinished
corpus and the lock of this output. Between two renames, ``.OUT.replaced`` holds the old corpus.
"""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from data_prep.store.workspace import LOCK_NAME, has_stages, hold, list_names, make_folder
from dstransformer.data import Corpus, Manifest
from dstransformer.data.manifest import MANIFEST_NAME
from dstransformer.data.tokenizer import SRC_TOKENIZER_NAME, TOKENIZER_NAME
from dstransformer.errors import DataError, UserError
from dstransformer.io.files import sync
from dstransformer.io.products import MARKER, kind_of
from dstransformer.io.progress import Progress

_TOP = frozenset({MARKER, MANIFEST_NAME, TOKENIZER_NAME, SRC_TOKENIZER_NAME, "dataset_dict.json"})
_SPLITS = frozenset({"train", "validation", "test"})
_IN_SPLIT = re.compile(r"dataset_info\.json|state\.json|data-\d{5}-of-\d{5}\.arrow|data-\d{5}\.partial")

# Maximum bytes of a name. File systems allow 255, and the folders beside a corpus have longer names.
_MAX_NAME_BYTES = 240


def check_paths(out: Path, work: Path, inputs: Sequence[Path | None] = ()) -> None:
    """Refuse paths that would mix a corpus, its work folder, its inputs or another product.

    Args:
        out: Where the corpus is to go, as ``resolve_output`` returns it.
        work: The work folder, absolute.
        inputs: Files and folders that are read; None is skipped.

    Raises:
        UserError: One of the paths is inside another, or inside a product.
    """
    work = Path(os.path.realpath(work))
    if out == work:
        raise UserError(f"--work and --out are both {out}: give --work a separate folder")
    if out in work.parents:
        raise UserError(f"--work {work} lies inside --out {out}: choose a work folder beside the corpus")
    if work in out.parents:
        raise UserError(f"--out {out} lies inside --work {work}: choose a folder outside of the work folder")
    for flag, path in (("--out", out), ("--work", work)):
        for folder in path.parents:
            if kind := kind_of(folder) or ("work folder" if has_stages(folder) else None):
                raise UserError(f"{flag} {path} lies inside the {kind} {folder}: choose a folder outside of it")
    for source in (Path(os.path.realpath(path)) for path in inputs if path):
        if source.is_dir() and source in (out, *out.parents, work, *work.parents):
            raise UserError(f"--out {out} or --work {work} lies inside the input folder {source}: choose another place")
        for flag, path in (("--out", out), ("--work", work)):
            if path in source.parents and source.name not in (TOKENIZER_NAME, SRC_TOKENIZER_NAME):
                raise UserError(f"the input {source} lies inside {flag} {path}: move it out, or choose another place")


def resolve_output(path: Path) -> Path:
    """Return the absolute path of ``--out`` with links resolved.

    Raises:
        UserError: No corpus can be written there.
    """
    if len(os.fsencode(path.name)) > _MAX_NAME_BYTES:
        raise UserError(f"the name of {path} is longer than {_MAX_NAME_BYTES} bytes: choose a shorter one")
    if Path(os.path.realpath(path)).is_symlink():
        raise UserError(f"{path} is a link that leads back to itself: remove it, or choose another --out")
    if path.is_symlink() and not path.exists():
        raise UserError(f"{path} is a link to {path.readlink()}, which does not exist: create that, or remove the link")
    out = Path(os.path.realpath(path))
    if not out.name or out.is_mount():
        raise UserError(f"{out} is the root of a file system and cannot be replaced: choose a folder inside it")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} exists and is not a corpus: choose another --out")
    return out


def find_corpus(out: Path, key: str, overwrite: bool) -> Manifest | None:
    """Return the manifest of the corpus ``out`` if it is the one that would be built, None if there is room for it.

    Raises:
        UserError: Something else is in the way, or ``overwrite`` would remove files that no build made.
        DataError: The corpus there is damaged, and ``overwrite`` is false.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if kind_of(out) != "corpus":
        raise UserError(f"{out} exists and is not a corpus: choose another --out")
    if overwrite:
        _refuse_foreign(out)
    try:
        manifest = Corpus.open(out).manifest
    except DataError as error:
        if overwrite:
            return None
        raise DataError(f"{error}; --overwrite replaces {out}") from None
    if manifest.build_key == key:
        return manifest
    if not overwrite:
        raise UserError(
            f"{out} is a corpus built from other inputs, options or versions: choose another --out, or --overwrite it"
        )
    return None


@contextmanager
def open_output(out: Path, progress: Progress) -> Iterator[Path]:
    """Lock ``out`` and yield the path of a folder to create beside it, for the unfinished corpus.

    That folder is removed when the block ends. A corpus that an interrupted ``install`` moved aside is put back first.

    Raises:
        UserError: Another process builds ``out``, or a folder that no build made is in the way.
    """
    folder = out.with_name(f".{out.name}.partial")
    unfinished = folder / "corpus"
    if folder.exists() and not {entry.name for entry in folder.iterdir()} <= {LOCK_NAME, unfinished.name}:
        raise UserError(f"{folder} is in the way and was not made by a build: move it away, or choose another --out")
    make_folder(out.parent)
    with hold(folder, f"another build is writing {out}; wait for it, or choose another --out"):
        try:
            if (old := _replaced(out)).is_dir() and not out.exists():
                old.rename(out)
                sync(out.parent)
                progress.note(f"{out} is restored: a build that was replacing it was killed")
            _remove_corpus(old)
            _remove_corpus(unfinished)
            yield unfinished
        finally:
            _remove_corpus(unfinished)
            (folder / LOCK_NAME).unlink(missing_ok=True)
            with suppress(OSError):  # another build has just begun to wait there
                folder.rmdir()


def install(unfinished: Path, out: Path, overwrite: bool) -> None:
    """Move a finished corpus to ``out``.

    Raises:
        UserError: Something has appeared there that must not be replaced.
    """
    old = _replaced(out)
    if out.exists() and any(out.iterdir()):
        if not overwrite:
            raise UserError(f"{out} was created by another program while this build ran: choose another --out")
        _refuse_foreign(out)
        out.rename(old)
    elif out.exists():
        out.rmdir()
    unfinished.rename(out)
    sync(out.parent)
    _remove_corpus(old)


def _replaced(out: Path) -> Path:
    return out.with_name(f".{out.name}.replaced")


def _remove_corpus(folder: Path) -> None:
    if folder.is_dir():
        _refuse_foreign(folder)
        shutil.rmtree(folder)


def _refuse_foreign(folder: Path) -> None:
    if foreign := foreign_entries(folder):
        raise UserError(
            f"{folder} holds files that are not part of a corpus ({list_names(foreign)}): move that away first"
        )


def foreign_entries(folder: Path) -> list[str]:
    """List the entries of a corpus folder, finished or not, that no build made: relative paths, sorted."""
    foreign = []
    for entry in sorted(folder.iterdir()):
        is_split = entry.is_dir() and (entry.name in _SPLITS or (entry / "state.json").is_file())
        if entry.is_symlink() or not (is_split or (entry.name in _TOP and entry.is_file())):
            foreign.append(entry.name)
        elif is_split:
            foreign += [
                f"{entry.name}/{inner.name}"
                for inner in sorted(entry.iterdir())
                if not _IN_SPLIT.fullmatch(inner.name) or inner.is_symlink() or not inner.is_file()
            ]
    return foreign
