"""Constituency trees as pairs for a parser: the words, and the tree on one line in the format of the treebank."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.recipe.names import printable_name, split_shares
from data_prep.recipe.options import TreesOptions
from data_prep.sources import Source
from data_prep.sources.finding import Stats, identify, read_unchanged
from data_prep.sources.texts import Text
from data_prep.store.pairs import text_table
from dstransformer.data import SourceInfo
from dstransformer.errors import UserError
from dstransformer.extras.parsing.trees import TOP, Tree, find_tree_files, iter_trees, normalise

Trees = Iterator[Tree]

_BATCH_TREES = 10_000

#: A file of the Wall Street Journal by its name: ``wsj_0203.mrg`` is the file 03 of section 02.
_SECTION = re.compile(r"wsj_?(\d\d)\d\d", re.IGNORECASE)

#: The sections of each split, as everyone divides them since Collins (1997).
WSJ_SECTIONS = {"train": range(2, 22), "validation": range(22, 23), "test": range(23, 24)}


def open_trees(options: TreesOptions) -> Source:
    """Find the files, and divide the treebank into splits.

    Raises:
        UserError: The options do not go together, or a split would be empty.
        DataError: A file is missing.
    """
    if not options.trees and not options.machine_trees:
        raise UserError("--trees is missing: name a treebank, a .mrg file, a folder of them or a pattern in quotes")
    files = find_tree_files(str(options.trees)) if options.trees else []
    held_out = (("validation", options.valid_trees), ("test", options.test_trees))
    given = {name: find_tree_files(str(path)) for name, path in held_out if path}
    machine = find_tree_files(str(options.machine_trees)) if options.machine_trees else []
    splits = _divide(files, options, given)
    splits["train"] = partial(_read_train, splits["train"], options.repeat, options.phrases, machine)
    splits |= {name: partial(_read, paths) for name, paths in given.items()}
    roles = {"treebank": files, **given, "machine": machine}
    stats: Stats = {}
    inputs = tuple(  # after their roles: patterns and folders are recorded without files
        identify(Text(path, "", str(path), f"{role}/{printable_name(path)}"), stats)
        for role, paths in roles.items()
        for path in paths
    )
    return Source(
        info=SourceInfo(name="trees", revision=None, inputs=inputs),
        splits={
            name: partial(read_unchanged, partial(_tables, splits[name]), stats)
            for name in ("train", "validation", "test")
            if name in splits
        },
    )


def _divide(files: list[Path], options: TreesOptions, given: dict[str, list[Path]]) -> dict[str, Callable[[], Trees]]:
    """The treebank's splits, without those that other files are given for: their share is training text."""
    kind = options.splits.partition(":")[0]
    if kind == "none" or not files:
        return {"train": partial(_read, files)}
    if kind == "wsj":
        sections = {name: numbers for name, numbers in WSJ_SECTIONS.items() if name not in given}
        return {name: partial(_read, paths) for name, paths in _choose_sections(files, options, sections).items()}
    shares = zip(("validation", "test"), split_shares(options.splits), strict=True)
    dev, test = (0.0 if name in given else share for name, share in shares)
    if kind == "random":
        borders = {"test": (0.0, test), "validation": (test, test + dev), "train": (test + dev, 1.0)}
        return {
            name: partial(_read_randomly, files, options.seed, low, high)
            for name, (low, high) in borders.items()
            if high > low
        }
    tests, devs = round(test * len(files)), round(dev * len(files))
    cuts = (0, len(files) - tests - devs, len(files) - tests, len(files))
    parts = dict(zip(("train", "validation", "test"), pairwise(cuts), strict=True))
    for name, (low, high) in parts.items():
        if low == high and {"validation": dev, "test": test}.get(name, 1):
            raise UserError(f"--splits {options.splits} leaves no file for {name}: {options.trees} has {len(files)}")
    return {name: partial(_read, files[low:high]) for name, (low, high) in parts.items() if high > low}


def _choose_sections(files: list[Path], options: TreesOptions, splits: Mapping[str, range]) -> dict[str, list[Path]]:
    section_of = {path: int(match[1]) for path in files if (match := _SECTION.search(path.name))}
    chosen = {name: [path for path in files if section_of.get(path) in numbers] for name, numbers in splits.items()}
    for name, numbers in splits.items():
        if not chosen[name]:
            there = sorted(set(section_of.values()))
            has = f"only sections {', '.join(f'{n:02}' for n in there)}" if there else "no files named wsj_0203.mrg"
            raise UserError(
                f"--splits wsj needs sections {numbers.start:02} to {numbers.stop - 1:02} for {name}, but "
                f"{options.trees} has {has}: choose --splits files:0.05,0.1 or another way"
            )
    return chosen


def _read(files: list[Path]) -> Trees:
    for file in files:
        for located in iter_trees(file):
            tree = normalise(located.tree)
            if tree is not None:
                yield tree


def _read_randomly(files: list[Path], seed: int, low: float, high: float) -> Trees:
    """The sentences whose random number, one for each, is in ``[low, high)``."""
    random = np.random.default_rng(seed)
    return (tree for tree in _read(files) if low <= random.random() < high)


def _read_train(treebank: Callable[[], Trees], times: int, max_words: int, machine: list[Path]) -> Trees:
    for _ in range(times):
        for tree in treebank():
            yield tree
            if max_words:
                yield from phrases(tree, max_words)
    yield from _read(machine)


def phrases(tree: Tree, max_words: int) -> Trees:
    """The phrases of two to ``max_words`` words inside a tree, of several over the same words the outermost."""
    parts = [child for child in tree.children if child.word is None]
    for part in parts:
        if len(tree.children) > 1 and 2 <= len(part.words()) <= max_words:
            yield Tree(TOP, (part,))
        yield from phrases(part, max_words)


def _tables(trees: Callable[[], Trees]) -> Iterator[pa.Table]:
    stream = trees()
    while batch := list(islice(stream, _BATCH_TREES)):
        yield text_table([" ".join(tree.words()) for tree in batch], list(map(str, batch)))
