"""Stage one: copy the sources' text to one Arrow file per split, and hold sets out of the training text."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from data_prep.recipe.options import FilesOptions
from data_prep.sources import Part
from data_prep.stages.holdout import hold_out
from data_prep.store.chunks import PIECES
from data_prep.store.pairs import SCHEMA, PairsWriter
from data_prep.workers.pool import Workers
from dstransformer.corpus import PartInfo, SourceInfo
from dstransformer.errors import DataError
from dstransformer.terminal.progress import Advance, Progress


class ReadReport(BaseModel):
    """The sources, the number of pairs in each split, and of training pairs of each source, held-out ones left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sources: tuple[SourceInfo, ...]
    pairs: dict[str, int]
    parts: tuple[PartInfo, ...]


def read_text(parts: Sequence[Part], folder: Path, workers: Workers, progress: Progress) -> ReadReport:
    """Write ``folder/<split>.arrow`` for each split: the text of the first part, then that of the next.

    Raises:
        DataError: A text cannot be used.
        UserError: The training text is too small for the held-out sets.
    """
    pairs = {}
    counts = np.zeros(len(parts), dtype=np.int64)
    for split in ("train", "validation", "test"):
        if not any(split in part.source.splits for part in parts):
            continue
        with progress.task(f"read {split}") as advance, PairsWriter(folder / f"{split}.arrow") as writer:
            for number, part in enumerate(parts):
                if split in part.source.splits:
                    before = writer.rows
                    _copy(part, split, number, writer, advance)
                    counts[number] += (writer.rows - before) * (split == "train")
        pairs[split] = writer.rows
    whole = counts
    for number, part in enumerate(parts):
        if isinstance(part.options, FilesOptions):
            sizes = {"validation": part.options.valid_size, "test": part.options.test_size}
            held_out = {split: size for split, size in sizes.items() if size}
            if held_out:
                counts = hold_out(folder, number, len(parts), held_out, part.options.seed, workers, progress)
                pairs |= {"train": int(counts.sum())} | held_out
    if (folder / PIECES).exists():
        shutil.rmtree(folder / PIECES)
    order = [split for split in ("train", "validation", "test") if split in pairs]
    return ReadReport(
        sources=tuple(part.source.info for part in parts),
        pairs={split: pairs[split] for split in order},
        parts=tuple(
            PartInfo(
                name=part.name,
                weight=part.options.weight,
                tag=part.options.tag,
                read=count,
                pairs=count,
                held_out=before - count,
            )
            for part, before, count in zip(parts, whole.tolist(), counts.tolist(), strict=True)
        ),
    )


def _copy(part: Part, split: str, number: int, writer: PairsWriter, advance: Advance) -> None:
    """Append a split of a part.

    Raises:
        DataError: It is empty, or one side of it.
    """
    blank = {"src": "source", "tgt": "target"}  # the sides that have had no text so far
    before = writer.rows
    for table in part.source.splits[split]():
        columns = dict(zip(table.column_names, table.columns, strict=True))
        columns["part"] = pa.array(np.full(table.num_rows, number, dtype=np.uint16))
        columns.setdefault("low", pa.array(np.zeros(table.num_rows, dtype=np.bool_)))
        writer.write(pa.table(columns, schema=SCHEMA))
        for side in list(blank):
            if any(map(str.strip, table[side].to_pylist())):
                del blank[side]
        advance(table.num_rows)
    if writer.rows == before:
        raise DataError(f"the {split} text of the source {part.name} is empty: it has no sentence pair")
    if blank and split != "train":  # cleaning says it of the training text
        side = next(iter(blank.values()))
        raise DataError(f"every line of the {side} side of the {split} text is empty: check which files were named")
