"""Stage one: copy the sources' text to one Arrow file per split, and hold sets out of the training text."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from data_prep.options import FilesOptions
from data_prep.pairs import SCHEMA, PairsWriter, hash_texts, map_pairs, normalise, select_pairs
from data_prep.sources import Part
from data_prep.workers import Workers
from dstransformer.corpus import PartInfo, SourceInfo
from dstransformer.errors import DataError, UserError
from dstransformer.progress import Advance, Progress

Counts = npt.NDArray[np.int64]


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
                found, counts = _hold_out(folder, number, len(parts), held_out, part.options.seed, workers, progress)
                pairs |= found
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


def _hold_out(
    folder: Path, part: int, parts: int, sizes: dict[str, int], seed: int, workers: Workers, progress: Progress
) -> tuple[dict[str, int], Counts]:
    """Move random pairs of a part out of the training text, and drop all that share their source sentences.

    Returns:
        The pairs of each split, and the training pairs of each part, ``(parts,)``.
    """
    train = folder / "train.arrow"
    whole = folder / "whole.arrow"
    train.rename(whole)
    with progress.task("hold out") as advance:
        tables = list(map_pairs(whole, source_keys, workers, advance))
    keys = np.concatenate([table["key"].to_numpy() for table in tables])
    usable = np.concatenate([table["usable"].to_numpy() for table in tables])
    part_of = np.concatenate([table["part"].to_numpy() for table in tables])
    rows = np.flatnonzero(usable & (part_of == part))
    candidates = np.sort(rows[np.unique(keys[rows], return_index=True)[1]])
    wanted = sum(sizes.values())
    if not len(candidates):
        raise UserError("no training pair has text on both sides: check that both files hold text")
    if wanted >= len(candidates):
        raise UserError(
            f"cannot hold {wanted} pairs out of a training text of {len(candidates)} distinct source sentences: "
            "choose a smaller --valid-size or --test-size, or give held-out text of its own with --valid and --test"
        )
    chosen = np.random.default_rng(seed).choice(candidates, size=wanted, replace=False)
    masks = {"train": ~np.isin(keys, keys[chosen])}
    for split, rows in zip(sizes, np.split(chosen, np.cumsum(list(sizes.values()))[:-1]), strict=True):
        masks[split] = np.zeros(len(keys), dtype=bool)
        masks[split][rows] = True
    for split, mask in masks.items():
        select_pairs(whole, mask, folder / f"{split}.arrow")
    whole.unlink()
    return {split: int(mask.sum()) for split, mask in masks.items()}, np.bincount(
        part_of[masks["train"]], minlength=parts
    )


def source_keys(table: pa.Table) -> pa.Table:
    """Compute a ``key`` that is equal for equal source sentences, and ``usable``: whether a pair can be held out."""
    src = [normalise(text, "nfkc") for text in table["src"].to_pylist()]
    tgt = [normalise(text, "nfkc") for text in table["tgt"].to_pylist()]
    usable = [bool(a and b and not low) for a, b, low in zip(src, tgt, table["low"].to_pylist(), strict=True)]
    return pa.table({"key": hash_texts(src), "usable": pa.array(usable, pa.bool_()), "part": table["part"]})
