"""Where a corpus goes: which folders may be written, the corpus that is there already, putting a new one in place.

Nothing is removed that a build did not make. While a build runs, ``.OUT.partial`` lies beside ``OUT`` (the corpus as
far as it is written, and the lock of this output) and, between two renames, ``.OUT.replaced`` (the corpus that goes).
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from data_prep.progress import Progress
from data_prep.workspace import LOCK_NAME, STAGES, hold, is_workspace, make_folder, shown
from dstransformer.corpus import Corpus, Manifest
from dstransformer.corpus.lines import is_same_file, writing_files
from dstransformer.corpus.manifest import MANIFEST_NAME, TOKENIZER_NAME
from dstransformer.corpus.writer import sync
from dstransformer.errors import DataError, UserError

_TOP = frozenset({MANIFEST_NAME, TOKENIZER_NAME, "dataset_dict.json"})
_SPLITS = frozenset({"train", "validation", "test"})
_IN_SPLIT = re.compile(r"dataset_info\.json|state\.json|data-\d{5}-of-\d{5}\.arrow|data-\d{5}\.partial")

# File systems take 255, and the folders beside a corpus have longer names.
_NAME_BYTES = 240

# What tells a folder of ours from any other, by the names of entries that it has.
_PRODUCTS = (
    ("corpus", (MANIFEST_NAME, TOKENIZER_NAME, "dataset_dict.json")),
    ("bundle", ("model.safetensors", "config.yaml")),
    ("run", ("config.yaml", "checkpoints")),
    ("run", ("config.yaml", "metrics.jsonl")),
)


def check_places(out: Path, work: Path, inputs: Sequence[Path | None] = ()) -> None:
    """Refuse places that would mix a corpus, its work folder, its inputs or another product with each other.

    Args:
        out: where the corpus is to go, as `resolve_output` returns it.
        work: the work folder, absolute.
        inputs: files and folders that are read.

    Raises:
        UserError: names the two places.
    """
    work = Path(os.path.realpath(work))
    if out == work:
        raise UserError(f"--work and --out are both {out}: give --work a folder of its own")
    if out in work.parents:
        raise UserError(f"--work {work} lies inside --out {out}: choose a work folder beside the corpus")
    if work in out.parents:
        raise UserError(f"--out {out} lies inside --work {work}: choose a folder outside of the work folder")
    for flag, place in (("--out", out), ("--work", work)):
        for folder in place.parents:
            if kind := _product(folder):
                raise UserError(f"{flag} {place} lies inside the {kind} {folder}: choose a folder outside of it")
    for source in (Path(os.path.realpath(path)) for path in inputs if path):
        if source.is_dir() and source in (out, *out.parents, work, *work.parents):
            raise UserError(f"--out {out} or --work {work} lies inside the input folder {source}: choose another place")
        for flag, place in (("--out", out), ("--work", work)):
            if place in source.parents and source.name != TOKENIZER_NAME:
                raise UserError(f"the input {source} lies inside {flag} {place}: move it out, or choose another place")


def _product(folder: Path) -> str | None:
    for kind, names in _PRODUCTS:
        if all((folder / name).exists() for name in names):
            return kind
    stages = any((folder / name).is_dir() for name in STAGES)
    return "work folder" if stages and is_workspace(folder) else None


def check_text_files(src: Path, tgt: Path, overwrite: bool) -> None:
    """Refuse, with a UserError, to replace files unless asked, or to write into a corpus, bundle or checkpoint."""
    if is_same_file(src, tgt):
        raise UserError(f"--src and --tgt are both {src}: give each its own file")
    for path in (src, tgt):
        folder = Path(os.path.realpath(path)).parent
        for parent in (folder, *folder.parents):
            if (kind := _product(parent)) and kind != "run":
                raise UserError(f"{path} lies inside the {kind} {parent}: choose a file outside of it")
        if path.is_file() and not overwrite:
            raise UserError(f"{path} exists: choose another file, or --overwrite it")


def write_text_files(texts: Mapping[Path, Sequence[str]], *, overwrite: bool) -> None:
    """Write sentences line by line into each file, ``-`` being standard output; the files appear together.

    Raises:
        UserError: one of them has appeared meanwhile, and ``overwrite`` is false.
        StorageError: one of them cannot be written; then none appears.
    """
    with writing_files(texts, overwrite=overwrite) as writes:
        for write, sentences in zip(writes, texts.values(), strict=True):
            for sentence in sentences:
                write(" ".join(sentence.splitlines()))


def resolve_output(path: Path) -> Path:
    """The absolute place of ``--out``, through links; UserError where no corpus can ever be there."""
    if len(os.fsencode(path.name)) > _NAME_BYTES:
        raise UserError(f"the name of {path} is longer than {_NAME_BYTES} bytes: choose a shorter one")
    if path.is_symlink() and not path.exists():
        raise UserError(f"{path} is a link to {path.readlink()}, which does not exist: create that, or remove the link")
    out = Path(os.path.realpath(path))
    if not out.name or out.is_mount():
        raise UserError(f"{out} is the root of a file system and cannot be replaced: choose a folder inside it")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} exists and is not a corpus: choose another --out or remove it")
    return out


def find_corpus(out: Path, key: str, overwrite: bool) -> Manifest | None:
    """The corpus ``out`` where it is what would be built.

    Raises:
        UserError: something else is in the way, or ``overwrite`` would remove what no build made.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / MANIFEST_NAME).is_file():
        raise UserError(f"{out} exists and is not a corpus: choose another --out or remove it")
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
            f"{out} is a corpus of other inputs, options or versions: choose another --out, or --overwrite it"
        )
    return None


@contextmanager
def open_output(out: Path, progress: Progress) -> Iterator[Path]:
    """Hold ``out`` and give the path of a new folder beside it, to write the corpus into; gone when the block ends.

    A corpus that an interrupted `install` had moved aside is put back in its place first.

    Raises:
        UserError: another process makes ``out``, or a folder that no build made is in the way.
    """
    folder = out.with_name(f".{out.name}.partial")
    unfinished = folder / "corpus"
    if folder.exists() and not {entry.name for entry in folder.iterdir()} <= {LOCK_NAME, unfinished.name}:
        raise UserError(f"{folder} is in the way and no build made it: move it away, or choose another --out")
    make_folder(out.parent)
    with hold(folder, f"another build makes {out}; wait for it, or choose another --out", progress):
        try:
            _recover(out, progress)
            _remove_corpus(unfinished)
            yield unfinished
        finally:
            _remove_corpus(unfinished)
            (folder / LOCK_NAME).unlink(missing_ok=True)
            with suppress(OSError):  # another build has just come to wait there
                folder.rmdir()


def install(unfinished: Path, out: Path, overwrite: bool) -> None:
    """Put a finished corpus in the place of ``out``; UserError where what is there by now must not be replaced."""
    old = _replaced(out)
    if out.exists() and any(out.iterdir()):
        if not overwrite:
            raise UserError(f"{out} was made by something else meanwhile: choose another --out")
        _refuse_foreign(out)
        out.rename(old)
    elif out.exists():
        out.rmdir()
    unfinished.rename(out)
    sync(out.parent)
    _remove_corpus(old)


def _recover(out: Path, progress: Progress) -> None:
    old = _replaced(out)
    if old.is_dir() and not out.exists():
        old.rename(out)
        sync(out.parent)
        progress.note(f"{out} is back: a build that was to replace it had been killed")
    _remove_corpus(old)


def _replaced(out: Path) -> Path:
    return out.with_name(f".{out.name}.replaced")


def _remove_corpus(folder: Path) -> None:
    if folder.is_dir():
        _refuse_foreign(folder)
        shutil.rmtree(folder)


def _refuse_foreign(folder: Path) -> None:
    if foreign := foreign_entries(folder):
        raise UserError(f"{folder} holds what is no part of a corpus ({shown(foreign)}): move that away first")


def foreign_entries(folder: Path) -> list[str]:
    """What lies in a corpus folder, finished or not, that no build put there: paths below it, sorted."""
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
