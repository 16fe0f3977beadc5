"""A small treebank: sentences of a grammar that a tiny model can learn to parse."""

from __future__ import annotations

import random
from pathlib import Path

from dstransformer.extras.parsing.trees import Tree

_WORDS = {"DT": ["the", "a"], "NN": ["cat", "dog", "bird"], "VBZ": ["sees", "hears"], "IN": ["near", "with"]}


def draw_tree(draw: random.Random) -> Tree:
    """``(S (NP DT NN [PP]) (VP VBZ NP) .)``."""

    def word(tag: str) -> Tree:
        return Tree(tag, word=draw.choice(_WORDS[tag]))

    def noun_phrase() -> Tree:
        plain = Tree("NP", (word("DT"), word("NN")))
        return Tree("NP", (plain, Tree("PP", (word("IN"), noun_phrase())))) if draw.random() < 0.3 else plain

    subject = Tree("NP-SBJ", noun_phrase().children)
    return Tree("S", (subject, Tree("VP", (word("VBZ"), noun_phrase())), Tree(".", word=".")))


def write_treebank(folder: Path, files: int = 20, per_file: int = 10, section: int | None = None) -> Path:
    """Write ``.mrg`` files as the Penn Treebank has them: function tags, traces, a bracket without a label."""
    draw = random.Random(1)
    folder.mkdir(parents=True)
    for number in range(files):
        trees = [f"( {draw_tree(draw)} )\n" for _ in range(per_file)]
        trees[0] = trees[0].replace("(VP ", "(VP (NP (-NONE- *T*-1)) ", 1)
        name = f"wsj_{number if section is None else section:02}{number:02}.mrg"
        (folder / name).write_text("".join(trees))
    return folder
