"""Stage two: normalise, filter and deduplicate the training pairs. The validation and test sets stay as they are."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from data_prep.near import find_near_duplicates
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
    iter_pairs,
    map_pairs,
    normalise,
    select_pairs,
)
from data_prep.rules import RULES
from dstransformer.corpus import CleaningReport, Overlap
from dstransformer.errors import DataError, counted
from dstransformer.progress import Progress

# In the order in which they are tried; a dropped pair is counted under the first rule that drops it.
NAMES = ("score", *(rule.name for rule in RULES), "overlap", "duplicate", "near_duplicate")

_KEPT = len(NAMES)

# What to do if a rule drops everything. Deduplication always leaves a pair.
_ADVICE = {
    "score": "lower --min-score",
    **{rule.name: rule.advice for rule in RULES},
    "overlap": "leave out --drop-overlap",
}

# Dropped pairs of each rule that are kept as examples, and the most characters of a side of them.
_EXAMPLES = 5
_EXAMPLE_LENGTH = 300


class CleanReport(BaseModel):
    """What cleaning dropped, how much of each held-out split is in the remaining text, and its pairs by part.

    The overlap is that before near duplicates are dropped: a pair that is nearly the dropped one is still there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cleaning: CleaningReport
    overlap: dict[str, Overlap]
    parts: tuple[int, ...]


def clean_text(
    read: Path, folder: Path, options: CleanOptions, languages: tuple[str, str], workers: int, progress: Progress
) -> CleanReport:
    """Write the pairs of ``read/train.arrow`` that pass every rule to ``folder/train.arrow``.

    Raises:
        DataError: No pair is left.
        ConfigError: A rule needs a package that is not installed.
    """
    active = {rule.name for rule in RULES if rule.build(options, *languages)}
    active |= {"duplicate", "overlap"} if options.drop_overlap else {"duplicate"}
    active |= {"near_duplicate"} if options.near_duplicates is not None else set()
    examples: dict[str, list[tuple[str, str]]] = {name: [] for name in NAMES}
    total = count_pairs(read / "train.arrow")
    passed, train = folder / "passed.arrow", folder / "train.arrow"
    counts = np.zeros(_KEPT + 1, dtype=np.int64)
    keys = [np.empty(0, dtype=np.uint64)]
    parts = [np.empty(0, dtype=np.uint16)]
    overlap = OverlapCounter(read)
    given = {"options": options, "languages": languages}
    with progress.task("clean train", total) as advance, PairsWriter(passed) as writer:
        for table in map_pairs(read / "train.arrow", judge, workers, advance, **given):
            rules = table["rule"].to_numpy()
            if options.drop_overlap:
                held_out = overlap.contains(table["src_key"].to_numpy())
                rules = np.where(held_out & (rules == _KEPT), NAMES.index("overlap"), rules)
            _collect_examples(table, rules, examples)
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
        counts[NAMES.index("duplicate")] = len(distinct) - distinct.sum()
        counts[_KEPT] = distinct.sum()
    else:
        passed.rename(train)
    kept_of = np.bincount(part_of)
    if options.near_duplicates is not None:
        near = _drop_near_duplicates(train, options, examples, workers, progress)
        kept_of[: len(near)] -= near
        counts[NAMES.index("near_duplicate")] = near.sum()
        counts[_KEPT] -= near.sum()
    found = zip(NAMES, counts[:_KEPT].tolist(), strict=True)
    dropped = {name: count for name, count in found if name in active or (name == "score" and count)}
    if not counts[_KEPT]:
        reasons = ", ".join(f"{rule} {count}" for rule, count in dropped.items() if count)
        advice = _ADVICE[max(dropped, key=lambda rule: dropped[rule])]
        raise DataError(f"cleaning left none of {counted(total, 'training pair')} ({reasons}): {advice}")
    shown = {name: tuple(pairs) for name, pairs in examples.items() if pairs}
    cleaning = CleaningReport(read=total, kept=int(counts[_KEPT]), dropped=dropped, examples=shown)
    return CleanReport(cleaning=cleaning, overlap=overlap.report(), parts=tuple(kept_of.tolist()))


def _drop_near_duplicates(
    train: Path, options: CleanOptions, examples: dict[str, list[tuple[str, str]]], workers: int, progress: Progress
) -> npt.NDArray[np.int64]:
    """Take near duplicates out of a file of pairs, and count them by part, up to the last part that has one."""
    near = find_near_duplicates(train, options, workers, progress)
    whole = train.with_name("whole.arrow")
    train.rename(whole)
    begin, parts = 0, [np.empty(0, dtype=np.uint16)]
    with PairsWriter(train) as writer:
        for batch in iter_pairs(whole):
            drops = near[begin : begin + batch.num_rows]
            begin += batch.num_rows
            table = pa.Table.from_batches([batch])
            writer.write(table.filter(pa.array(~drops)))
            _collect_examples(table, np.where(drops, NAMES.index("near_duplicate"), _KEPT), examples)
            parts.append(table["part"].to_numpy()[drops])
    whole.unlink()
    return np.bincount(np.concatenate(parts))


def _collect_examples(
    table: pa.Table, rules: npt.NDArray[np.integer[Any]], examples: dict[str, list[tuple[str, str]]]
) -> None:
    """Add the first dropped pairs of each rule."""
    for number in np.unique(rules[rules < _KEPT]).tolist():
        there = examples[NAMES[number]]
        rows = np.flatnonzero(rules == number)[: _EXAMPLES - len(there)]
        for pair in table.select(["src", "tgt"]).take(rows).to_pylist():
            there.append((pair["src"][:_EXAMPLE_LENGTH], pair["tgt"][:_EXAMPLE_LENGTH]))


def judge(table: pa.Table, options: CleanOptions, languages: tuple[str, str]) -> pa.Table:
    """Normalise pairs, find the rule that drops each, and hash them.

    Returns:
        The columns of ``SCHEMA``; ``rule``, an index into ``NAMES``, ``len(NAMES)`` for one that is kept;
        ``key``, equal for equal pairs; ``src_key`` and ``pair_key``, hashes of the source sentence and of the pair in
        Unicode form NFKC, for comparison with held-out text.
    """
    form = options.normalise
    src, tgt = (
        [normalise(text, form) for text in _punctuate(table[side].to_pylist(), options, language)]
        for side, language in zip(("src", "tgt"), languages, strict=True)
    )
    built = ((NAMES.index(rule.name), rule.build(options, *languages)) for rule in RULES)
    judges = [(number, function) for number, function in built if function]
    rules = [next((number for number, drops in judges if drops(*pair)), _KEPT) for pair in zip(src, tgt, strict=True)]
    if table["low"].to_numpy().any():
        low = table["low"].to_pylist()
        rules = [NAMES.index("score") if is_low else rule for is_low, rule in zip(low, rules, strict=True)]
    key = hash_pairs(src, tgt)
    if form == "nfkc" and options.punctuation == "keep":
        src_key, pair_key = hash_texts(src), key
    else:
        src_key, pair_key = comparison_keys(table)
    return pa.table(
        {
            "src": src,
            "tgt": tgt,
            "part": table["part"],
            "low": table["low"],
            "rule": pa.array(rules, pa.uint8()),
            "key": key,
            "src_key": src_key,
            "pair_key": pair_key,
        }
    )


def _punctuate(texts: list[str], options: CleanOptions, language: str) -> list[str]:
    if options.punctuation == "keep":
        return texts
    normalizer = _punctuation(language)
    return [normalizer.normalize(text) for text in texts]


@cache
def _punctuation(language: str) -> Any:
    from sacremoses import MosesPunctNormalizer

    return MosesPunctNormalizer(lang=language.lower())


def _first_occurrences(keys: Hashes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    mask = np.zeros(len(keys), dtype=bool)
    mask[np.unique(keys, return_index=True)[1]] = True
    return mask
