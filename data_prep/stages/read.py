"""Stage one: copy the sources' text to one Arrow file per split, and hold sets out of the training text."""

import shutil
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import dstransformer
from data_prep.recipe.options import DividedOptions, FilesOptions
from data_prep.recipe.recipe import record_sources
from data_prep.sources.files import swapped_sides
from data_prep.sources.opening import ENTITY, QUOTED, Part
from data_prep.stages.holdout import hold_out
from data_prep.stages.text import TextFormat, fold
from data_prep.store.chunks import CHUNKS, Report
from data_prep.store.pairs import PairsWriter, count_files, index_pairs, take_pairs
from data_prep.store.workspace import StageFiles, StoredStage, Workspace, list_names
from data_prep.workers import Workers
from dstransformer.data import Option, PartInfo, SourceInfo
from dstransformer.errors import DataError, UserError
from dstransformer.io.glance import MAX_PAIRS, Sample, judge_empty, judge_languages
from dstransformer.io.products import FORMATS
from dstransformer.io.progress import Advance, Progress

#: Above these shares of the pairs, text is taken for escaped (pages about HTML have entities too), or for quoted: both
#: sides of a pair (so is direct speech), or one with doubled quotes inside (which only tables have).
_ESCAPED, _QUOTED, _DOUBLED = 0.02, 0.5, 0.01


class ReadReport(Report):
    """The sources, the number of pairs in each split, and the training pairs of each source without held-out ones.

    ``held_out`` lists, for each held-out split, the numbers of the sources in it and how many pairs each has, in order.
    ``aligned`` says whether some training pairs have alignments.
    """

    sources: tuple[SourceInfo, ...]
    pairs: dict[str, int]
    parts: tuple[PartInfo, ...]
    held_out: dict[str, tuple[tuple[int, int], ...]]
    aligned: bool = False


@dataclass(frozen=True)
class Read(StoredStage[ReadReport]):
    """Reads the sources, which are already open."""

    name = "read"
    files = StageFiles(
        results=("train.arrow", "validation.arrow", "test.arrow", "whole.arrow"),
        in_chunk=("pairs.arrow", "keys", "order", "marks", "sources", "usable"),
        beside_chunks=("chosen",),
    )
    report_type = ReadReport

    parts: Sequence[Part]
    after: str = ""

    def record(self) -> dict[str, Option]:
        """See ``Stage``."""
        return record_sources({part.name: part.options for part in self.parts})

    def content(self) -> dict[str, Any]:
        """See ``Stage``. The versions decide, beside inputs and options, the bytes of a corpus."""
        sources = {
            part.name: {"source": part.source.info.model_dump(), "options": part.options.record()}
            for part in self.parts
        }
        versions = {
            "format": FORMATS["corpus"],
            "dstransformer": dstransformer.__version__,
            "sentencepiece": version("sentencepiece"),
            "unicode": unicodedata.unidata_version,
        }
        return {"sources": sources, "order": list(sources), "made_by": versions}

    def check(self, work: Workspace) -> None:
        """Warn of sides that may be swapped, and say why a finished stage is run again."""
        for part in self.parts:
            options = part.options
            if isinstance(options, FilesOptions) and (warning := swapped_sides(options)):
                work.progress.note(warning)
        if changes := _changed_sources(work, [part.source.info for part in self.parts]):
            work.progress.note(f"reading the text again, because {changes}")

    def write(self, work: Workspace, folder: Path, workers: Workers) -> ReadReport:
        """See ``StoredStage``."""
        return read_text(self.parts, folder, workers, work.progress)

    def warn(self, work: Workspace) -> None:
        """Warn of what a look at the text finds, and of held-out sentences without a translation."""
        report = work.report(Read)
        training = tuple((number, part.pairs) for number, part in enumerate(report.parts))
        for split, sizes in {"train": training, **report.held_out}.items():
            path, end = work.folder / self.name / f"{split}.arrow", 0
            index = index_pairs(path)
            for number, size in sizes:
                part, begin, end = self.parts[number], end, end + size
                name = part.name if split == "train" else f"the {split} set of {part.name}"
                step = size // MAX_PAIRS + 1 if split == "train" else 1
                table = take_pairs(path, np.arange(begin, end, step), index)
                warnings = look_at(part, name, table) if split in part.source.splits else []  # not held out of training
                if split != "train":
                    sides = {"sources": "src", "references": "tgt"}
                    empty = judge_empty({f"{k} of {name}": fold(table[v].to_pylist()) for k, v in sides.items()})
                    warnings += [empty] if empty else []
                for text in warnings:
                    work.progress.note(f"warning: {text}")


def text_format(work: Workspace) -> TextFormat:
    """How the sentences of the sources are written, once they are read."""
    options = work.finished(Read).options
    trees = {name: str(options[name]) for name in ("tags", "closing")} if options["source"] == "trees" else None
    return TextFormat(tuple(part.tag for part in work.report(Read).parts), trees)


def read_text(parts: Sequence[Part], folder: Path, workers: Workers, progress: Progress) -> ReadReport:
    """Write ``folder/<split>.arrow`` for each split: the text of the first part, then that of the next.

    Raises:
        DataError: A text cannot be used.
        UserError: The training text is too small for the held-out sets.
    """
    pairs: dict[str, int] = {}
    held_out: dict[str, list[tuple[int, int]]] = {"validation": [], "test": []}
    counts = np.zeros(len(parts), dtype=np.int64)
    first_files = np.cumsum([0, *(max(1, len(part.source.files)) for part in parts)]).tolist()
    for split in ("train", "validation", "test"):
        if not any(split in part.source.splits for part in parts):
            continue
        with progress.task(f"read {split}") as advance, PairsWriter(folder / f"{split}.arrow") as writer:
            for number, part in enumerate(parts):
                if split in part.source.splits:
                    before = writer.rows
                    _copy(part, split, number, first_files[number], writer, advance)
                    if split == "train":
                        counts[number] = writer.rows - before
                    else:
                        held_out[split].append((number, writer.rows - before))
        pairs[split] = writer.rows
    read = counts
    for number, part in enumerate(parts):
        if isinstance(part.options, DividedOptions) and (sizes := part.options.held_out_sizes):
            counts = hold_out(folder, number, len(parts), sizes, part.options.seed, workers, progress)
            pairs["train"] = int(counts.sum())
            for split, size in sizes.items():
                pairs[split] = pairs.get(split, 0) + size
                held_out[split].append((number, size))
    if (folder / CHUNKS).exists():
        shutil.rmtree(folder / CHUNKS)
    in_files = count_files(folder / "train.arrow", first_files[-1])
    order = [split for split in ("train", "validation", "test") if split in pairs]
    return ReadReport(
        sources=tuple(part.source.info for part in parts),
        pairs={split: pairs[split] for split in order},
        parts=tuple(
            PartInfo(
                name=part.name,
                src_lang=part.languages[0],
                tgt_lang=part.languages[1],
                weight=part.options.weight,
                tag=part.options.tag,
                read=count,
                pairs=count,
                held_out=before - count,
                files=tuple((name, n, n) for name, n in zip(part.source.files, in_files[first:], strict=False)),
            )
            for part, before, count, first in zip(parts, read.tolist(), counts.tolist(), first_files[:-1], strict=True)
        ),
        held_out={split: tuple(sizes) for split, sizes in held_out.items() if sizes},
        aligned=any(part.source.aligned for part in parts),
    )


def _copy(part: Part, split: str, number: int, first_file: int, writer: PairsWriter, advance: Advance) -> None:
    """Append a split of a part, whose files are numbered from ``first_file``.

    Raises:
        DataError: The split is empty.
    """
    before = writer.rows
    for table in part.tables(split):
        columns = dict(zip(table.column_names, table.columns, strict=True))
        columns["part"] = pa.array(np.full(table.num_rows, number, dtype=np.uint16))
        columns.setdefault("low", pa.array(np.zeros(table.num_rows, dtype=np.bool_)))
        columns["file"] = pc.add(columns.get("file", 0), pa.array([first_file] * table.num_rows, pa.uint32()))
        writer.write(pa.table(columns))
        advance(table.num_rows)
    if writer.rows == before:
        raise DataError(f"the {split} text of the source {part.name} is empty: it has no sentence pair")


def _changed_sources(work: Workspace, sources: Sequence[SourceInfo]) -> str | None:
    """How sources differ from those that the finished stage has read; None if they do not."""
    try:
        before = work.report(Read).sources
    except UserError:  # not finished, or of another version
        return None
    old, new = (
        Counter((file.name, file.sha256) for source in side for file in source.inputs) for side in (before, sources)
    )
    removed, added = {name for name, _ in old - new}, {name for name, _ in new - old}
    described = (
        ("changed", sorted(removed & added)),
        ("added", sorted(added - removed)),
        ("removed", sorted(removed - added)),
    )
    changes = [f"{list_names(names)} {what}" for what, names in described if names]
    if [source.revision for source in before] != [source.revision for source in sources]:
        changes.append("a data set has another revision")
    return "; ".join(changes) or None


def look_at(part: Part, name: str, table: pa.Table) -> list[str]:
    """Compare text of a source, which messages call ``name``, with its languages, and with plain text.

    Returns:
        A warning with figures for each thing that is suspicious.

    Raises:
        DataError: Neither side is in the script of its language.
    """
    codes = part.languages
    if part.options.source == "toy" or codes[1] == "tree" or not table.num_rows:
        return []
    src, tgt = (table[side].to_pylist() for side in ("src", "tgt"))
    warnings = _judge_form(name, src, tgt)
    if codes[0] == codes[1]:  # text of one language
        return warnings
    if src == tgt and len(src) > 1:
        return [f"the sides of {name} are the same text: is one file given for both?", *warnings]
    try:
        languages = judge_languages(name, Sample(src, codes[0]), Sample(tgt, codes[1]))
    except DataError as error:
        raise DataError(f"{error}; correct --src-lang and --tgt-lang") from None
    return [languages, *warnings] if languages else warnings


def _judge_form(name: str, src: Sequence[str], tgt: Sequence[str]) -> list[str]:
    pairs = [*zip(src, tgt, strict=True)]
    entities = [entity for pair in pairs if (entity := ENTITY.search("\n".join(pair)))]
    quoted = [[field for field in pair if QUOTED.fullmatch(field)] for pair in pairs]
    full = sum(len(fields) == 2 for fields in quoted) / len(pairs)
    doubled = sum(any('""' in field[1:-1] for field in fields) for fields in quoted) / len(pairs)
    warnings = []
    if (share := len(entities) / len(pairs)) > _ESCAPED:
        warnings.append(
            f"{share:.0%} of the pairs of {name} hold entities such as {entities[0][0]}: --unescape html writes the "
            "characters"
        )
    if (share := max(full, doubled)) > _QUOTED or doubled > _DOUBLED:
        warnings.append(f"{share:.0%} of the pairs of {name} are in quotes, as in a table: --unquote takes them off")
    return warnings
