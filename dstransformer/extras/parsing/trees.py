"""Constituency trees in the format of the Penn Treebank (Marcus et al., 1993)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dstransformer.errors import DataError, shown
from dstransformer.io.compression import without_ending
from dstransformer.io.files import matching
from dstransformer.io.text import iter_lines

#: The label of a tree's outermost bracket, which has none in the treebank.
TOP = "TOP"

#: The tag of what is not a word: traces and other empty elements.
EMPTY = "-NONE-"

#: Lines that begin so are comments: the copyright notice in the treebank's files.
_COMMENT = "*x*"

#: Maximum nesting of brackets; the treebank's deepest tree has 36.
_MAX_DEPTH = 200

_BRACKETS = str.maketrans({"(": "-LRB-", ")": "-RRB-", "{": "-LCB-", "}": "-RCB-", "[": "-LSB-", "]": "-RSB-"})

_TOKEN = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True, slots=True)
class Tree:
    """A node and everything below it.

    Attributes:
        label: The label of a phrase, or the part-of-speech tag of a word.
        children: The parts of a phrase, from left to right; empty for a word.
        word: The word of a tag; None for a phrase.
    """

    label: str
    children: tuple[Tree, ...] = ()
    word: str | None = None

    def leaves(self) -> Iterator[Tree]:
        """The words with their tags, from left to right."""
        if self.word is not None:
            yield self
        for child in self.children:
            yield from child.leaves()

    def words(self) -> list[str]:
        """The words, from left to right."""
        return [leaf.word for leaf in self.leaves() if leaf.word is not None]

    def __str__(self) -> str:
        """The tree on one line, with brackets; ``(())`` if it has no words."""
        if self.word is None and not self.children:
            return "(())"
        inside = self.word if self.word is not None else " ".join(map(str, self.children))
        return f"({self.label} {inside})"

    def draw(self) -> str:
        """The tree over several lines: a phrase of words only on one line, other parts indented."""
        if self.word is not None or not any(child.children for child in self.children):
            return str(self)
        parts = [f"  {line}" for child in self.children for line in child.draw().splitlines()]
        return "\n".join([f"({self.label}", *parts]) + ")"


@dataclass(frozen=True)
class Located:
    """A tree and where it begins: ``wsj_0001.mrg, line 3``."""

    tree: Tree
    place: str


def find_tree_files(given: str) -> list[Path]:
    """The files that a file, a folder (its ``.mrg`` files, at any depth) or a pattern stands for, sorted.

    Raises:
        DataError: The file does not exist, the folder holds no ``.mrg`` file, or no file fits the pattern.
    """
    path = Path(given)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*.mrg*") if without_ending(file.name).endswith(".mrg"))
        if not files:
            raise DataError(f"{given} holds no .mrg files: name a folder of the treebank, or a file")
        return files
    files = [path] if path.exists() else matching(path)
    if not files:
        raise DataError(f"{given} does not exist, and no file has a name of that pattern")
    return files


def read_trees(given: str) -> list[Located]:
    """Read the trees of a file, a folder or a pattern, see :func:`find_tree_files`. A file may be gzipped.

    Raises:
        DataError: No file is found, a file is not UTF-8, or a bracket is out of place; the message names the line.
    """
    trees = [located for file in find_tree_files(given) for located in iter_trees(file)]
    if not trees:
        raise DataError(f"{given} holds no trees: expected trees such as (S (NP (NN cats)) (VP (VBP sleep)))")
    return trees


def iter_trees(file: Path) -> Iterator[Located]:
    """Read the trees of a file, each over any number of lines, or several on one.

    Raises:
        DataError: The file is empty or not UTF-8, or a bracket is out of place; the message names the line.
    """
    if file.is_file() and not file.stat().st_size:
        raise DataError(f"{file} is empty: expected trees such as (S (NP (NN cats)) (VP (VBP sleep)))")
    return _parse_lines(iter_lines(file), str(file))


def parse_tree(text: str) -> Tree:
    """The tree that a text holds.

    Raises:
        DataError: The text holds no tree or several, or a bracket is out of place.
    """
    trees = [located.tree for located in _parse_lines([text], shown(text))]
    if len(trees) != 1:
        raise DataError(f"{shown(text)} holds {len(trees)} trees, not one")
    return trees[0]


def _parse_lines(lines: Iterable[str], name: str) -> Iterator[Located]:
    open_nodes: list[_OpenNode] = []
    for number, line in enumerate(lines, 1):
        if line.startswith(_COMMENT):
            continue
        for token in _TOKEN.findall(line):
            place = f"{name}, line {number}"
            if token == "(":
                if len(open_nodes) == _MAX_DEPTH:
                    raise DataError(f"{place}: more than {_MAX_DEPTH} brackets are open: is one never closed?")
                open_nodes.append(_OpenNode(place))
            elif not open_nodes:
                raise DataError(
                    f"{place}: {shown(token)} is outside of any tree: a tree begins with `(`, and brackets in words "
                    "are written -LRB- and -RRB-"
                )
            elif token == ")":
                closed = open_nodes.pop()
                tree = closed.close(place, top=not open_nodes)
                if not open_nodes:
                    yield Located(tree, closed.place)
                else:
                    open_nodes[-1].children.append(tree)
            else:
                open_nodes[-1].texts.append(token)
    if open_nodes:
        raise DataError(f"{open_nodes[-1].place}: this bracket is never closed: is the file complete?")


@dataclass
class _OpenNode:
    """A node whose closing bracket has not been read."""

    place: str
    texts: list[str] = field(default_factory=list)
    children: list[Tree] = field(default_factory=list)

    def close(self, place: str, *, top: bool) -> Tree:
        texts, children = self.texts, tuple(self.children)
        if len(texts) == 2 and not children:
            return Tree(texts[0], word=texts[1])
        if children and len(texts) == 1:
            return Tree(texts[0], children)
        if children and not texts and top:
            return Tree(TOP, children)
        if not children and not texts:
            return Tree(TOP)  # of a parser that found no tree: (())
        if not children:
            raise DataError(f"{place}: ({' '.join(texts)}) is neither a tag with one word nor a phrase with parts")
        wrong = f"text beside its parts, {shown(texts[1])}" if texts else "no label"
        raise DataError(f"{self.place}: a phrase has {wrong}: write (LABEL (TAG word) …)")


def escape_brackets(text: str) -> str:
    """Write brackets as the treebank does: -LRB- and -RRB-, -LCB- and -RCB-, -LSB- and -RSB-."""
    return text.translate(_BRACKETS)


def normalise(tree: Tree) -> Tree | None:
    """Take away what no parser predicts: empty elements, function tags and indices (``NP-SBJ-1`` becomes ``NP``).

    Words of invisible characters only are removed too, and phrases that become empty. Other words and their tags
    stay as they are.

    Returns:
        The tree; None if no word is left.
    """
    if tree.word is not None:
        return None if tree.label == EMPTY or not any(map(str.isprintable, tree.word)) else tree
    children = tuple(child for child in map(normalise, tree.children) if child is not None)
    return Tree(plain_label(tree.label), children) if children else None


def plain_label(label: str) -> str:
    """A label without function tags and indices. One that begins with ``-``, such as ``-LRB-``, stays as it is."""
    return label if label.startswith("-") else re.split("[-=]", label, maxsplit=1)[0] or label
