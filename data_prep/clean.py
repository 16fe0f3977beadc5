"""Stage two: normalise, filter and deduplicate the training pairs. The validation and test sets stay as they are."""

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from data_prep.options import CleanOptions
from data_prep.overlap import OverlapCounter
from data_prep.pairs import (
    SCHEMA,
    Hashes,
    PairsWriter,
    comparison_keys,
    count_pairs,
    hash_pairs,
    hash_texts,
    map_pairs,
    normalise,
    select_pairs,
)
from dstransformer.corpus import CleaningReport, Overlap
from dstransformer.errors import DataError, counted
from dstransformer.progress import Progress

# In the order in which they are tried; a dropped pair is counted under the first rule that drops it.
RULES = ("empty", "too_long", "length_ratio", "overlap", "duplicate")

_KEPT = len(RULES)

# What to do if a rule drops everything. Deduplication always leaves a pair.
_ADVICE = {
    "empty": "check that both files hold text",
    "too_long": "raise --max-words",
    "length_ratio": "check that line n of one file translates line n of the other, or raise --max-ratio",
    "overlap": "leave out --drop-overlap",
}


class CleanReport(BaseModel):
    """What cleaning dropped, how much of each held-out split is in the remaining text, and its pairs by part."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cleaning: CleaningReport
    overlap: dict[str, Overlap]
    parts: tuple[int, ...]


def clean_text(read: Path, folder: Path, options: CleanOptions, workers: int, progress: Progress) -> CleanReport:
    """Write the pairs of ``read/train.arrow`` that pass every rule to ``folder/train.arrow``.

    Raises:
        DataError: No pair is left.
    """
    total = count_pairs(read / "train.arrow")
    passed, train = folder / "passed.arrow", folder / "train.arrow"
    counts = np.zeros(_KEPT + 1, dtype=np.int64)
    keys = [np.empty(0, dtype=np.uint64)]
    parts = [np.empty(0, dtype=np.uint16)]
    overlap = OverlapCounter(read)
    given = {"form": options.normalise, "max_words": options.max_words, "max_ratio": options.max_ratio}
    with progress.task("clean train", total) as advance, PairsWriter(passed) as writer:
        for table in map_pairs(read / "train.arrow", judge, workers, advance, **given):
            rules = table["rule"].to_numpy()
            if options.drop_overlap:
                held_out = overlap.contains(table["src_key"].to_numpy())
                rules = np.where(held_out & (rules == _KEPT), RULES.index("overlap"), rules)
            counts += np.bincount(rules, minlength=_KEPT + 1)
            kept = table.filter(pa.array(rules == _KEPT))
            overlap.count(kept["src_key"].to_numpy(), kept["pair_key"].to_numpy())
            keys.append(kept["key"].to_numpy())
            parts.append(kept["part"].to_numpy())
            writer.write(kept.select(SCHEMA.names))
    part_of = np.concatenate(parts)
    if options.dedup:
        distinct = _first_occurrences(np.concatenate(keys))
        part_of = part_of[distinct]
        select_pairs(passed, distinct, train)
        passed.unlink()
        counts[RULES.index("duplicate")] = len(distinct) - distinct.sum()
        counts[_KEPT] = distinct.sum()
    else:
        passed.rename(train)
    dropped = dict(zip(RULES, counts[:_KEPT].tolist(), strict=True))
    if not options.drop_overlap:
        del dropped["overlap"]
    if not counts[_KEPT]:
        reasons = ", ".join(f"{rule} {count}" for rule, count in dropped.items() if count)
        advice = _ADVICE[max(dropped, key=lambda rule: dropped[rule])]
        raise DataError(f"cleaning left none of {counted(total, 'training pair')} ({reasons}): {advice}")
    cleaning = CleaningReport(read=total, kept=int(counts[_KEPT]), dropped=dropped)
    return CleanReport(cleaning=cleaning, overlap=overlap.report(), parts=tuple(np.bincount(part_of).tolist()))


def judge(table: pa.Table, form: Literal["nfkc", "none"], max_words: int, max_ratio: float) -> pa.Table:
    """Normalise pairs, find the rule that drops each, and hash them.

    Returns:
        Columns ``src``, ``tgt`` and ``part``; ``rule``, an index into ``RULES``, ``len(RULES)`` for one that is kept;
        ``key``, equal for equal pairs; ``src_key`` and ``pair_key``, hashes of the source sentence and of the pair in
        Unicode form NFKC, for comparison with held-out text.
    """
    src = [normalise(text, form) for text in table["src"].to_pylist()]
    tgt = [normalise(text, form) for text in table["tgt"].to_pylist()]
    rules = [
        _rule(a.count(" ") + 1 if a else 0, b.count(" ") + 1 if b else 0, max_words, max_ratio)
        for a, b in zip(src, tgt, strict=True)
    ]
    key = hash_pairs(src, tgt)
    if form == "nfkc":
        src_key, pair_key = hash_texts(src), key
    else:
        src_key, pair_key = comparison_keys(table)
    return pa.table(
        {
            "src": src,
            "tgt": tgt,
            "part": table["part"],
            "rule": pa.array(rules, pa.uint8()),
            "key": key,
            "src_key": src_key,
            "pair_key": pair_key,
        }
    )


def _rule(src_words: int, tgt_words: int, max_words: int, max_ratio: float) -> int:
    shorter, longer = sorted((src_words, tgt_words))
    if not shorter:
        return RULES.index("empty")
    if longer > max_words:
        return RULES.index("too_long")
    if longer > max_ratio * shorter:
        return RULES.index("length_ratio")
    return _KEPT


def _first_occurrences(keys: Hashes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    mask = np.zeros(len(keys), dtype=bool)
    mask[np.unique(keys, return_index=True)[1]] = True
    return mask
