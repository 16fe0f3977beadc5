"""Our scores against PYEVALB's, another implementation of EVALB, on random trees and damaged copies of them."""

from __future__ import annotations

import random

from PYEVALB.parser import create_from_bracket_string
from PYEVALB.scorer import Scorer

from dstransformer.extras.parsing.brackets import score_tree
from dstransformer.extras.parsing.trees import TOP, Tree, parse_tree

LABELS = ("S", "NP", "VP", "PP", "ADVP")
TAGS = ("NN", "DT", "VBZ", "IN")


def grow(draw: random.Random, words: list[str], label: str = "S") -> Tree:
    """A random tree over these words, without a phrase that occurs twice."""
    if len(words) == 1:
        return Tree(draw.choice(TAGS), word=words[0])
    cut = draw.randrange(1, len(words))
    parts = (words[:cut], words[cut:])
    return Tree(label, tuple(grow(draw, part, draw.choice(LABELS)) for part in parts))


def damage(draw: random.Random, tree: Tree) -> Tree:
    """A copy with some labels and tags changed, and some brackets taken away."""
    if tree.word is not None:
        return Tree(draw.choice(TAGS) if draw.random() < 0.2 else tree.label, word=tree.word)
    children: list[Tree] = []
    for child in (damage(draw, child) for child in tree.children):
        children.extend(child.children if child.word is None and draw.random() < 0.2 else (child,))
    return Tree(draw.choice(LABELS) if draw.random() < 0.2 else tree.label, tuple(children))


def assert_equal_scores(scorer: Scorer, gold: Tree, parsed: Tree) -> None:
    ours = score_tree(parse_tree(str(Tree(TOP, (gold,)))), parse_tree(str(Tree(TOP, (parsed,)))))
    theirs = scorer.score_trees(*map(create_from_bracket_string, map(str, (gold, parsed))))
    found = (theirs.matched_brackets, theirs.gold_brackets, theirs.test_brackets, theirs.words, theirs.correct_tags)
    assert (ours.matched, ours.gold, ours.parsed, ours.words, ours.tagged) == found, f"{gold}\n{parsed}"


def test_equal_to_pyevalb_on_random_pairs() -> None:
    draw = random.Random(1)
    scorer = Scorer()
    for _ in range(1000):
        gold = grow(draw, [f"w{number}" for number in range(draw.randrange(2, 25))])
        assert_equal_scores(scorer, gold, damage(draw, gold))
