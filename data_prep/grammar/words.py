"""Words that remember what they express, so that the words of both linearisations of a plan can be linked.

A *node* is a place in the plan, written as a path such as ``embedded.clause.subject.head``. A linearisation names nodes
relative to its phrase, and whoever puts the phrase into a larger one says where it stands there (``within``). So a
node has the same name in both languages, and nodes of equal content (two pronouns, say) have different names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from dstransformer.data.alignment import Link, ReferenceAlignment


class Word(NamedTuple):
    """A word of a sentence.

    Attributes:
        text: Its letters.
        nodes: What it expresses: several if it fuses them, as *im* does a preposition and an article.
        beside: What it belongs to without a counterpart of its own, as *do* in questions does to the verb.
    """

    text: str
    nodes: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    def also(self, *nodes: str) -> Word:
        """The word, which expresses these nodes too."""
        return self._replace(nodes=self.nodes + nodes)

    def only_beside(self, node: str) -> Word:
        """The word, which expresses nothing but belongs to a node."""
        return Word(self.text, (), (node,))

    def followed_by(self, mark: Word) -> Word:
        """The word with a punctuation mark on it."""
        return Word(self.text + mark.text, self.nodes, self.beside + mark.nodes)


Words = list[Word]

#: A comma without a counterpart in the other language.
COMMA = Word(",")


def within(node: str, words: Words) -> Words:
    """The words of a phrase as part of a larger one, in which the phrase is ``node``."""
    return [
        Word(
            text,
            (f"{node}.{nodes[0]}",) if len(nodes) == 1 else tuple([f"{node}.{own}" for own in nodes]),
            tuple([f"{node}.{own}" for own in beside]) if beside else (),
        )
        for text, nodes, beside in words
    ]


def counterparts(node: str, words: Sequence[str], others: int) -> Words:
    """The words of a fixed expression that has ``others`` words in the other language.

    As many words on both sides express the same one by one, and a single word expresses all of the other side.
    Otherwise the first words express the same, and the last; those between belong to the first.
    """
    if len(words) == others:
        return [Word(word, (f"{node}.{place}",)) for place, word in enumerate(words)]
    if others == 1 or len(words) == 1:
        return [Word(word, (f"{node}.0",)) for word in words]
    first, *between, last = words
    return [
        Word(first, (f"{node}.0",)),
        *(Word(word, (), (f"{node}.0",)) for word in between),
        Word(last, (f"{node}.last",)),
    ]


def join(words: Words, mark: str) -> Words:
    """Put punctuation on words, and a capital at the beginning.

    A comma hangs on the word before it, is never doubled, and gives way to the final mark.
    """
    joined: Words = []
    comma: Word | None = None
    for word in words:
        if word.text == ",":
            comma = comma or word
            continue
        if comma and joined:
            joined[-1] = joined[-1].followed_by(comma)
        joined.append(word)
        comma = None
    joined[-1] = joined[-1].followed_by(Word(mark, ("mark",)))
    text, nodes, beside = joined[0]
    joined[0] = Word(text[0].upper() + text[1:], nodes, beside)
    return joined


def link(src: Words, tgt: Words) -> ReferenceAlignment:
    """Link words: surely if both express a node, possibly if a node is all that they have in common.

    So words that fuse nodes have a sure link for each, function words without a counterpart have a possible link to the
    word that they belong to, and words with the same punctuation mark on them are linked possibly, because the mark is
    only a part of them.
    """
    sure: set[Link] = set()
    possible: set[Link] = set()
    places: dict[str, list[tuple[int, bool]]] = defaultdict(list)
    for place, word in enumerate(tgt):
        for node in word.nodes:
            places[node].append((place, True))
        for node in word.beside:
            places[node].append((place, False))
    for place, word in enumerate(src):
        for nodes, expressed in ((word.nodes, True), (word.beside, False)):
            for node in nodes:
                for other, other_expressed in places.get(node, ()):
                    (sure if expressed and other_expressed else possible).add((place, other))
    return ReferenceAlignment(tuple(sorted(sure)), tuple(sorted(possible - sure)))
