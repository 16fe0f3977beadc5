"""Test sets, in text files or in sacrebleu's cache."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dstransformer.data.reader import text_digest
from dstransformer.data.tokenizer import plain_spaces
from dstransformer.errors import DataError, UserError, counted, shown
from dstransformer.io.compression import without_ending
from dstransformer.io.glance import judge_empty
from dstransformer.io.languages import divide_codes, matching_codes
from dstransformer.io.text import is_same_file, iter_lines

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TestSet:
    """Sentences and their reference translations.

    Attributes:
        name: A short name, for tables.
        sources: Source sentences; None if only references are known.
        references: The reference of each sentence.
        src: Where the sources come from; None if there are none.
        ref: Where the references come from.

    Raises:
        DataError: Every source or every reference is empty.
    """

    __test__ = False  # not a pytest class

    name: str
    sources: tuple[str, ...] | None
    references: tuple[str, ...]
    src: str | None
    ref: str

    def __post_init__(self) -> None:
        """Warn of sentences of which one side is empty."""
        sides = {f"sources of {self.src}": self.sources, f"references of {self.ref}": self.references}
        visible = {side: list(map(plain_spaces, lines)) for side, lines in sides.items() if lines is not None}
        if (warning := judge_empty(visible)) is not None:
            logger.warning(warning)

    @cached_property
    def digest(self) -> str:
        """The :func:`text_digest` of a corpus split with the same text. Missing sources count as empty."""
        return text_digest(self.sources or [""] * len(self.references), self.references)

    def to_json(self) -> dict[str, Any]:
        """Plain data: name, paths and hashes. A hash is that of the plain text, each line ending in LF."""
        return {
            "name": self.name,
            "src": self.src,
            "ref": self.ref,
            "src_sha256": None if self.sources is None else self._hash(self.sources),
            "ref_sha256": self._hash(self.references),
            "digest": self.digest,
        }

    @staticmethod
    def _hash(lines: Sequence[str]) -> str:
        return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def read_test_set(name: str, src: str | None, ref: str) -> TestSet:
    """Read a test set from two plain or gzipped files, one sentence per line; without ``src`` it has references only.

    Raises:
        UserError: Both are the same file.
        DataError: A file cannot be read, is empty or not UTF-8, or the numbers of lines differ.
    """
    if src is not None and is_same_file(src, ref):
        raise UserError(f"--src and --ref are the same file, {ref}: name the reference translation")
    sources = None if src is None else tuple(iter_lines(src))
    references = tuple(iter_lines(ref))
    if sources is not None:
        check_lines(src, len(sources), ref, len(references))
    return TestSet(name, sources, references, src, ref)


def check_lines(path: object, lines: int, other: object, expected: int) -> None:
    """Check that two texts have as many lines.

    Raises:
        DataError: They do not.
    """
    if lines != expected:
        raise DataError(
            f"{path} has {counted(lines, 'line')} but {other} has {expected:,}: line n of one must translate line n of "
            "the other"
        )


def read_test_sets(src: Sequence[str], ref: Sequence[str]) -> list[TestSet]:
    """Read test sets from pairs of files; without ``src`` they have references only.

    Raises:
        UserError: The numbers of source and reference files differ, or a pair is the same file.
        DataError: See :func:`read_test_set`.
    """
    if src and len(src) != len(ref):
        raise UserError(f"--src is given {len(src)} times and --ref {len(ref)} times: give both for each test set")
    sources: Sequence[str | None] = src or [None] * len(ref)
    return [read_test_set(*files) for files in zip(_short_names(ref), sources, ref, strict=True)]


def _short_names(paths: Sequence[str]) -> list[str]:
    """File names without folder and ending, or with them if they would not be unique."""
    plain = [without_ending(path) for path in paths]
    for shorten in (lambda path: Path(path).stem, lambda path: Path(path).name):
        names = list(map(shorten, plain))
        if len(set(names)) == len(names):
            return names
    return list(paths)


def cached_test_set(name: str, languages: str) -> TestSet:
    """A test set from sacrebleu's cache, with its first reference. Nothing is downloaded.

    Args:
        name: ``wmt14``, ``wmt14/full`` …
        languages: ``en-de``.

    Raises:
        UserError: sacrebleu has no such test set, or none for these languages, or it is not in the cache.
    """
    from sacrebleu.dataset import DATASETS

    if (dataset := DATASETS.get(name)) is None:
        raise UserError(
            f"--test-set {shown(name)}: sacrebleu has no such test set; `sacrebleu --list` names all, and "
            "flores200:DIR, ntrex:DIR and wmt24pp:DIR are read from folders"
        )
    languages = _cached_pair(languages, list(dataset.langpairs), name)
    fields = dataset.fieldnames(languages)
    paths = {field: Path(dataset._get_txt_file_path(languages, field)) for field in fields}  # type: ignore[no-untyped-call]
    ref = next(field for field in fields if field.startswith("ref"))
    missing = [field for field in ("src", ref) if not paths[field].exists()]
    if missing:
        raise UserError(
            f"--test-set {name}: {paths[missing[0]]} is not in sacrebleu's cache; "
            f"`sacrebleu -t {name} -l {languages} --echo src >{os.devnull}` downloads it"
        )
    return read_test_set(f"{name} {languages}", str(paths["src"]), str(paths[ref]))


def _cached_pair(languages: str, pairs: Sequence[str], name: str) -> str:
    """The pair of a test set that means these languages: ``en-ja`` for ``en-jpn``."""
    if languages in pairs:
        return languages
    codes = dict.fromkeys(code for pair in pairs for code in pair.split("-", 1))
    src, tgt = divide_codes(languages, list(codes))
    sides = {pair: pair.split("-", 1) for pair in pairs}
    matching = [pair for pair, (a, b) in sides.items() if matching_codes(src, [a]) and matching_codes(tgt, [b])]
    if len(matching) != 1:
        raise UserError(f"--test-set {name} has no {languages}, only {', '.join(pairs)}")
    return matching[0]
