"""Stage one: copy the source's text to one Arrow file per split, and hold sets out of the training text."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from data_prep.pairs import PairsWriter, hash_texts, map_pairs, normalise, select_pairs
from data_prep.recipe import FilesOptions, SourceOptions
from data_prep.sources import Source
from dstransformer.corpus import SourceInfo
from dstransformer.errors import DataError, UserError
from dstransformer.progress import Progress


class ReadReport(BaseModel):
    """The source, and the number of pairs in each split."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: SourceInfo
    pairs: dict[str, int]


def read_text(source: Source, options: SourceOptions, folder: Path, workers: int, progress: Progress) -> ReadReport:
    """Write ``folder/<split>.arrow`` for each split.

    Raises:
        DataError: A text cannot be used.
        UserError: The training text is too small for the held-out sets.
    """
    pairs = {}
    for split, stream in source.splits.items():
        blank = {"src": "source", "tgt": "target"}  # the sides that have had no text so far
        with progress.task(f"read {split}") as advance, PairsWriter(folder / f"{split}.arrow") as writer:
            for table in stream():
                writer.write(table)
                for side in list(blank):
                    if any(map(str.strip, table[side].to_pylist())):
                        del blank[side]
                advance(table.num_rows)
        if writer.rows and blank and split != "train":  # cleaning says it of the training text
            side = next(iter(blank.values()))
            raise DataError(f"every line of the {side} side of the {split} text is empty: check which files were named")
        if not writer.rows:
            raise DataError(f"the {split} text of the source {options.source} is empty: it has no sentence pair")
        pairs[split] = writer.rows
    if isinstance(options, FilesOptions):
        sizes = {"validation": options.valid_size, "test": options.test_size}
        held_out = {split: size for split, size in sizes.items() if size}
        if held_out:
            pairs |= _hold_out(folder, held_out, options.seed, workers, progress)
    order = [split for split in ("train", "validation", "test") if split in pairs]
    return ReadReport(source=source.info, pairs={split: pairs[split] for split in order})


def _hold_out(folder: Path, sizes: dict[str, int], seed: int, workers: int, progress: Progress) -> dict[str, int]:
    """Move random pairs out of the training text, and drop the others that share their source sentences."""
    train = folder / "train.arrow"
    whole = folder / "whole.arrow"
    train.rename(whole)
    with progress.task("hold out") as advance:
        tables = list(map_pairs(whole, source_keys, workers, advance))
    keys = np.concatenate([table["key"].to_numpy() for table in tables])
    usable = np.concatenate([table["usable"].to_numpy() for table in tables])
    rows = np.flatnonzero(usable)
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
    return {split: int(mask.sum()) for split, mask in masks.items()}


def source_keys(table: pa.Table) -> pa.Table:
    """Compute a ``key`` that is equal for equal source sentences, and ``usable``: whether both sides have text."""
    src = [normalise(text, "nfkc") for text in table["src"].to_pylist()]
    tgt = [normalise(text, "nfkc") for text in table["tgt"].to_pylist()]
    usable = [bool(a and b) for a, b in zip(src, tgt, strict=True)]
    return pa.table({"key": hash_texts(src), "usable": pa.array(usable, pa.bool_())})
