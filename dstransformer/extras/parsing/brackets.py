"""Labelled bracketing scores as EVALB computes them (Sekine and Collins, 1997, with the parameters ``COLLINS.prm``)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from dstransformer.errors import DataError
from dstransformer.extras.parsing.trees import EMPTY, TOP, Located, Tree, normalise, plain_label

#: Labels that do not count: phrases are skipped, words are removed.
DELETED = frozenset({TOP, EMPTY, ",", ":", "``", "''", "."})

#: Labels that count as another.
EQUAL = {"PRT": "ADVP"}

#: Maximum words, with punctuation and without empty elements, of a gold sentence in the second table.
CUTOFF = 40

SIGNATURE = "evalb|COLLINS.prm|deleted:TOP -NONE- , : `` '' .|ADVP=PRT|tags:{tags}"

#: Which tags of the gold tree the parsed words get before those that do not count are left out. ``parsed``: none, as in
#: EVALB; a sentence fails if only one side tags one of its words as punctuation. ``punctuation``: the gold tree says
#: what is punctuation, as Collins advises to prepare a parser's output for EVALB; then none fails. ``gold``: all.
Tags = Literal["parsed", "punctuation", "gold"]

#: The tag of a word that only the parser takes for punctuation: a wrong one.
_WRONG = "wrong"

# A bracket: label, first word, word after its last.
Bracket = tuple[str, int, int]


@dataclass(frozen=True)
class Counts:
    """What one sentence, or several, add to the scores.

    Attributes:
        sentences: Sentences that were compared.
        failed: Sentences that could not be, because their words differ: they add nothing else.
        skipped: Sentences whose parsed tree has no word that counts: they add nothing else.
        gold: Brackets of the gold tree.
        parsed: Brackets of the parsed tree.
        matched: Brackets that both have.
        complete: Sentences whose brackets are all right.
        crossing: Parsed brackets that cross a gold one.
        uncrossed: Sentences without any of these.
        words: Words that count.
        tagged: Words with the right tag.
    """

    sentences: int = 0
    failed: int = 0
    skipped: int = 0
    gold: int = 0
    parsed: int = 0
    matched: int = 0
    complete: int = 0
    crossing: int = 0
    uncrossed: int = 0
    words: int = 0
    tagged: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    @property
    def precision(self) -> float:
        """Share of the parsed brackets that are right, in percent; NaN without any."""
        return _percent(self.matched, self.parsed)

    @property
    def recall(self) -> float:
        """Share of the gold brackets that were found, in percent; NaN without any."""
        return _percent(self.matched, self.gold)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, in percent; 0 if nothing is right."""
        return 200.0 * self.matched / (self.gold + self.parsed) if self.gold + self.parsed else float("nan")

    def metrics(self) -> dict[str, float]:
        """The scores by name, in percent, but for ``crossing``: crossing brackets per sentence."""
        return {
            "f1": self.f1,
            "precision": self.precision,
            "recall": self.recall,
            "complete_match": _percent(self.complete, self.sentences),
            "tagging_accuracy": _percent(self.tagged, self.words),
            "crossing": self.crossing / self.sentences if self.sentences else float("nan"),
            "no_crossing": _percent(self.uncrossed, self.sentences),
        }


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else float("nan")


def _without_nan(metrics: dict[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in metrics.items()}


@dataclass(frozen=True)
class BracketScores:
    """The scores of a test set.

    Attributes:
        all: Over all sentences.
        short: Over those of at most ``CUTOFF`` words.
        signature: How they were computed. Only scores with equal signatures are comparable.
    """

    all: Counts
    short: Counts
    signature: str

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "sentences": self.all.sentences,
            "failed": self.all.failed,
            "skipped": self.all.skipped,
            "metrics": _without_nan(self.all.metrics()),
            f"metrics_up_to_{CUTOFF}_words": _without_nan(self.short.metrics()),
            "signature": self.signature,
        }

    def __str__(self) -> str:
        """A table of both, and the signature."""
        rows = [(f"all {self.all.sentences:,} sentences", self.all)]
        rows += [(f"{self.short.sentences:,} of at most {CUTOFF} words", self.short)]
        lines = ["{:32} {:>6} {:>9} {:>6} {:>8} {:>7}".format("", "F1", "precision", "recall", "complete", "tagging")]
        for name, counts in rows:
            found = counts.metrics()
            names = ("f1", "precision", "recall", "complete_match", "tagging_accuracy")
            f1, precision, recall, complete, tagging = (found[metric] for metric in names)
            lines.append(f"{name:32} {f1:6.2f} {precision:9.2f} {recall:6.2f} {complete:8.2f} {tagging:7.2f}")
        left_out = {"failed: their words differ from the gold words": self.all.failed}
        left_out["skipped: their parsed trees have no word that counts"] = self.all.skipped
        lines += [f"{number:,} more {reason}" for reason, number in left_out.items() if number]
        return "\n".join([*lines, self.signature])


def score_files(gold: Sequence[Located], parsed: Sequence[Located], tags: Tags = "parsed") -> BracketScores:
    """Score parsed trees against gold trees in the same order; ``tags`` of the gold trees go before the parser's.

    Raises:
        DataError: One side has more trees, or no sentence could be compared.
    """
    if len(gold) != len(parsed):
        more, fewer, longer = ("gold", "parsed", gold) if len(gold) > len(parsed) else ("parsed", "gold", parsed)
        count = min(len(gold), len(parsed))
        raise DataError(
            f"{longer[count].place}: this {more} tree has no {fewer} one: there are only {count:,}; give the trees of "
            "the same sentences, in the same order"
        )
    scores = score_trees([one.tree for one in gold], [one.tree for one in parsed], tags)
    if not scores.all.sentences:
        first = f": first {gold[0].place} and {parsed[0].place}" if gold else ""
        raise DataError(f"no gold tree has the words of its parsed tree{first}; give the trees of the same sentences")
    return scores


def score_trees(gold: Sequence[Tree], parsed: Sequence[Tree], tags: Tags = "parsed") -> BracketScores:
    """As :func:`score_files`, of as many trees on both sides, even if no sentence can be compared."""
    everything, short = Counts(), Counts()
    for ours, theirs in zip(gold, parsed, strict=True):
        counts = score_tree(ours, theirs, tags)
        everything += counts
        if sum(leaf.label != EMPTY for leaf in ours.leaves()) <= CUTOFF:
            short += counts
    return BracketScores(everything, short, SIGNATURE.format(tags=tags))


def score_tree(gold: Tree, parsed: Tree, tags: Tags = "parsed") -> Counts:
    """Compare two trees of one sentence; see :func:`score_files`."""
    if tags != "parsed":
        parsed = _retag(parsed, gold, tags)
    gold_words, gold_brackets = _flatten(gold)
    parsed_words, parsed_brackets = _flatten(parsed)
    if not parsed_words:
        if tags != "parsed" and gold_words:  # no tree at all: nothing is right
            return Counts(sentences=1, gold=len(gold_brackets), words=len(gold_words))
        return Counts(skipped=1)
    if [word for word, _ in gold_words] != [word for word, _ in parsed_words]:
        return Counts(failed=1)
    matched = (Counter(gold_brackets) & Counter(parsed_brackets)).total()
    spans = {(first, end) for _, first, end in gold_brackets}
    crossing = sum(
        any(a < first < b < end or first < a < end < b for a, b in spans) for _, first, end in parsed_brackets
    )
    return Counts(
        sentences=1,
        gold=len(gold_brackets),
        parsed=len(parsed_brackets),
        matched=matched,
        complete=int(matched == len(gold_brackets) == len(parsed_brackets)),
        crossing=crossing,
        uncrossed=int(not crossing),
        words=len(gold_words),
        tagged=sum(ours == theirs for (_, ours), (_, theirs) in zip(gold_words, parsed_words, strict=True)),
    )


def _flatten(tree: Tree) -> tuple[list[tuple[str, str]], list[Bracket]]:
    """The words that count with their tags, and the brackets around them."""
    words: list[tuple[str, str]] = []
    brackets: list[Bracket] = []

    def visit(node: Tree) -> None:
        label = plain_label(node.label)
        if node.word is not None:
            if label not in DELETED:
                words.append((node.word, label))
            return
        first = len(words)
        for child in node.children:
            visit(child)
        if label not in DELETED and len(words) > first:
            brackets.append((EQUAL.get(label, label), first, len(words)))

    visit(tree)
    return words, brackets


def _retag(tree: Tree, gold: Tree, tags: Tags) -> Tree:
    """A tree with tags of another over the same words; unchanged over other words."""
    leaves = [leaf for leaf in gold.leaves() if leaf.label != EMPTY]
    words = [leaf.word for leaf in leaves]
    if words != tree.words():
        tree = normalise(tree) or tree  # without its empty elements
    if words != tree.words():
        return tree
    rest = iter(leaves)

    def choose(own: str, right: str) -> str:
        if tags == "gold" or plain_label(right) in DELETED:
            return right
        return _WRONG if plain_label(own) in DELETED else own

    def visit(node: Tree) -> Tree:
        if node.word is not None:
            return Tree(choose(node.label, next(rest).label), word=node.word)
        return Tree(node.label, tuple(visit(child) for child in node.children))

    return visit(tree)
