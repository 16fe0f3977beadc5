"""Text of one language for back-translation and distillation: cleaned and deduplicated as training pairs are.

The stages ``read`` and ``clean`` run over a work folder, each sentence as a pair with itself; so memory is bounded, an
interrupted command resumes, and the rules are those of pairs. Then the sentences that are left are written.
"""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from data_prep.recipe.options import MONO_CLEANING, CleanOptions, MonoOptions
from data_prep.sources.files import open_mono
from data_prep.sources.opening import Part
from data_prep.sources.texts import local_text
from data_prep.stages.clean import Clean
from data_prep.stages.read import Read
from data_prep.stages.rules import check_rules
from data_prep.store.output import check_paths
from data_prep.store.pairs import iter_pairs
from data_prep.store.workspace import Stage, open_workspace
from data_prep.workers import Workers
from dstransformer.data import InputFile, Option
from dstransformer.errors import UserError
from dstransformer.io.progress import Progress
from dstransformer.io.text import already_exists, check_output_file, is_stdout, writing_files

#: Version of the record.
FORMAT_VERSION = 1

#: The stages in order.
STAGES: tuple[type[Stage], ...] = (Read, Clean)

#: Rules that compare the sides of a pair. A sentence and itself pass them.
_OF_TWO_SIDES = ("length_ratio",)


class MonoRecord(BaseModel):
    """What a text was made from and how; ``read == kept + sum(dropped.values())``.

    ``text_sha256`` is the hash of the plain text, each line ending in LF.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: int = FORMAT_VERSION
    lang: str
    text_sha256: str
    inputs: tuple[InputFile, ...]
    read: int
    kept: int
    dropped: dict[str, int]
    examples: dict[str, tuple[str, ...]]
    options: dict[str, Option]
    versions: dict[str, str]


def record_path(out: Path) -> Path:
    """The record of a text, beside it: ``mono.de.gz.json`` of ``mono.de.gz``."""
    return out.with_name(f"{out.name}.json")


def clean_mono(
    options: MonoOptions,
    cleaning: CleanOptions,
    out: Path,
    work: Path,
    *,
    workers: AbstractContextManager[Workers],
    overwrite: bool,
    progress: Progress,
) -> MonoRecord:
    """Clean a text and write it with its record, reusing what an interrupted call left in ``work``.

    Args:
        options: The text.
        cleaning: The rules.
        out: Where the text goes; gzipped if it ends in ``.gz``. It appears together with its record.
        work: The work folder, absolute.
        workers: Where the tasks run.
        overwrite: Whether an existing text is replaced.
        progress: Shows what is done.

    Raises:
        UserError, DataError: An option, a file or ``out`` cannot be used; finished stages stay in ``work``.
        StorageError: A write failed.
    """
    names = (*options.text, *(options.held_out_text or ()))
    inputs = [local_text(name).path for name in names if isinstance(name, Path)]
    _check_output(out, inputs, overwrite)
    check_paths(out.absolute(), work, inputs)
    part = Part("mono", options, open_mono(options, progress))
    if options.held_out_text:
        cleaning = cleaning.model_copy(update={"drop_overlap": True})
    read = Read([part])
    check_rules(cleaning, [part.languages])
    clean = Clean(cleaning, after=read.key)
    made_by: dict[str, Any] = read.content()["made_by"]
    with open_workspace(work, progress, STAGES) as workspace, workspace.kept_for_retry(), workers as executor:
        for stage in (read, clean):
            workspace.run(stage, executor)
        workspace.verify(Clean)
        report = workspace.report(Clean)
        with writing_files([out, record_path(out)], overwrite=overwrite, inputs=inputs) as (write, write_record):
            sha256 = _write_sentences(workspace.folder / Clean.name / "train.arrow", write)
            record = MonoRecord(
                lang=options.lang,
                text_sha256=sha256,
                inputs=part.source.info.inputs,
                read=report.cleaning.read,
                kept=report.cleaning.kept,
                dropped={name: n for name, n in report.cleaning.dropped.items() if name not in _OF_TWO_SIDES},
                examples={name: tuple(src for src, _ in pairs) for name, pairs in report.cleaning.examples.items()},
                options=_record(options, cleaning),
                versions={name: str(made_by[name]) for name in ("dstransformer", "unicode")} | report.packages,
            )
            write_record(record.model_dump_json(indent=2))
        workspace.clear()
    return record


def _check_output(out: Path, inputs: list[Path], overwrite: bool) -> None:
    """Refuse an output before anything is read."""
    if is_stdout(out):
        raise UserError(f"--out {out}: name a file; its record is written beside it")
    if out.suffix in (".xz", ".bz2", ".zst", ".zip"):
        raise UserError(f"--out {out}: the text is written plain, or gzipped to a name in .gz: choose one of them")
    for path in (out, record_path(out)):
        check_output_file(path, inputs)
        if path.exists() and not overwrite:
            raise already_exists(path)


def _write_sentences(path: Path, write: Callable[[str], None]) -> str:
    """Write the sentences of a file of pairs; returns the hash of their lines, each ending in LF."""
    digest = hashlib.sha256()
    for batch in iter_pairs(path):
        for sentence in batch["src"].to_pylist():
            digest.update(f"{sentence}\n".encode())
            write(sentence)
    return digest.hexdigest()


def _record(options: MonoOptions, cleaning: CleanOptions) -> dict[str, Option]:
    """The options as the command line has them."""
    named = {"text": "in", "held_out_text": "held_out"}
    text = {
        named.get(k, k): v for k, v in options.record().items() if k in named or k in ("lang", "unquote", "unescape")
    }
    return text | {name: value for name, value in cleaning.record().items() if name in MONO_CLEANING}
