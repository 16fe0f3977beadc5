"""Stage two: training pairs normalised, filtered by rule and deduplicated. Validation and test stay as they are."""

import hashlib
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from data_prep.options import CleanOptions
from data_prep.pairs import SCHEMA, PairsWriter, count_pairs, map_pairs, select_pairs
from data_prep.progress import Progress
from dstransformer.corpus import CleaningReport
from dstransformer.corpus.text import plain_spaces
from dstransformer.errors import DataError

# In the order in which they are tried; a pair counts for the first that drops it.
RULES = ("empty", "too_long", "length_ratio", "duplicate")

_KEPT = len(RULES)


def clean_text(read: Path, folder: Path, options: CleanOptions, workers: int, progress: Progress) -> CleaningReport:
    """Write ``folder/train.arrow`` out of ``read/train.arrow``; DataError where no pair is left."""
    total = count_pairs(read / "train.arrow")
    passed, train = folder / "passed.arrow", folder / "train.arrow"
    counts = np.zeros(_KEPT + 1, dtype=np.int64)
    keys = [np.empty(0, dtype=np.uint64)]
    given = {"form": options.normalise, "max_words": options.max_words, "max_ratio": options.max_ratio}
    with progress.task("clean train", total) as task, PairsWriter(passed) as writer:
        for table in map_pairs(read / "train.arrow", judge, workers, task, **given):
            rules = table["rule"].to_numpy()
            counts += np.bincount(rules, minlength=_KEPT + 1)
            kept = table.filter(pa.array(rules == _KEPT))
            keys.append(kept["key"].to_numpy())
            writer.write(kept.select(SCHEMA.names))
    if options.dedup:
        distinct = _first_occurrences(np.concatenate(keys))
        select_pairs(passed, distinct, train)
        passed.unlink()
        counts[RULES.index("duplicate")] = len(distinct) - distinct.sum()
        counts[_KEPT] = distinct.sum()
    else:
        passed.rename(train)
    dropped = dict(zip(RULES, counts[:_KEPT].tolist(), strict=True))
    if not counts[_KEPT]:
        reasons = ", ".join(f"{rule} {count}" for rule, count in dropped.items() if count)
        raise DataError(f"cleaning left none of {total} training pairs ({reasons}): relax --max-words or --max-ratio")
    return CleaningReport(read=total, kept=int(counts[_KEPT]), dropped=dropped)


def judge(table: pa.Table, form: Literal["nfkc", "none"], max_words: int, max_ratio: float) -> pa.Table:
    """Normalised pairs with the number of the ``rule`` that drops each, and a ``key`` equal for equal pairs."""
    src = [normalise(text, form) for text in table["src"].to_pylist()]
    tgt = [normalise(text, form) for text in table["tgt"].to_pylist()]
    rules = [
        _rule(a.count(" ") + 1 if a else 0, b.count(" ") + 1 if b else 0, max_words, max_ratio)
        for a, b in zip(src, tgt, strict=True)
    ]
    keys = hash_texts(f"{a}\n{b}" for a, b in zip(src, tgt, strict=True))
    return pa.table({"src": src, "tgt": tgt, "rule": pa.array(rules, pa.uint8()), "key": keys})


def normalise(text: str, form: Literal["nfkc", "none"]) -> str:
    """Unicode-normalised text without control characters, with single spaces."""
    text = plain_spaces(text)
    if form == "nfkc":
        text = unicodedata.normalize("NFKC", text)
    return " ".join(filter(None, text.split(" ")))


def hash_texts(texts: Iterable[str]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """64-bit hashes: among 36M sentences, that any two collide has a chance of 1 in 28,000."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _rule(src_words: int, tgt_words: int, max_words: int, max_ratio: float) -> int:
    shorter, longer = sorted((src_words, tgt_words))
    if not shorter:
        return RULES.index("empty")
    if longer > max_words:
        return RULES.index("too_long")
    if longer > max_ratio * shorter:
        return RULES.index("length_ratio")
    return _KEPT


def _first_occurrences(keys: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    mask = np.zeros(len(keys), dtype=bool)
    mask[np.unique(keys, return_index=True)[1]] = True
    return mask
