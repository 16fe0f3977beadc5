"""Trees as sequences of brackets and tags (Vinyals et al., 2015, section 3), and back. The words are left out.

There are three kinds of symbols: ``(NP`` opens a phrase, ``)NP`` or ``)`` closes it, ``(DT)`` is a word with its tag.
No word of a treebank has a bracket in it, so such a symbol is never part of a sentence. Numbers in place of tags are
the exception: they stand before the words of the sentence too, so that both sides name a word alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from dstransformer.data import UNK_ID, Tokenizer
from dstransformer.data.form import Form
from dstransformer.extras.parsing.trees import TOP, Tree, parse_tree

#: The tag of every word, if tags are not kept.
ANY_TAG = "XX"

#: Words are numbered from 0 to one less than this, and again from 0.
NUMBERS = 100


@dataclass(frozen=True)
class Linearisation(Form):
    """How trees are written.

    Attributes:
        tags: ``keep`` the part-of-speech tag of each word, write ``(XX)`` for all (``xx``), or the place of the word in
            the sentence (``numbered``).
        closing: Closing brackets carry their ``label`` (``)NP``), or are ``bare``.
    """

    tags: Literal["keep", "xx", "numbered"] = "keep"
    closing: Literal["label", "bare"] = "label"

    model: ClassVar[str] = "a parser"
    content: ClassVar[str] = "trees"
    decoder: ClassVar[str] = "dstransformer.extras.parsing.parser:RawTextParser"
    task: ClassVar[str] = "dstransformer.extras.parsing.parser:Parsing"
    requirements: ClassVar[tuple[str, ...]] = ("nltk",)
    usage: ClassVar[tuple[str, ...]] = (
        "dst parse {} input.txt --output output.mrg",
        "dst evaluate {} --task parsing --gold test.mrg",
    )

    def write(self, tree: Tree) -> list[str]:
        """``(S (NP (DT) (NN) )NP (VP (VBZ) )VP )S`` for a tree. An outermost ``TOP`` over one phrase is left out."""
        symbols: list[str] = []
        is_wrapped = tree.label == TOP and len(tree.children) == 1
        self._write(tree.children[0] if is_wrapped else tree, symbols, itertools.count())
        return symbols

    def _write(self, tree: Tree, symbols: list[str], places: Iterator[int]) -> None:
        if tree.word is not None:
            place = next(places)
            tag = tree.label if self.tags == "keep" else ANY_TAG
            symbols.append(number_symbol(place) if self.tags == "numbered" else f"({tag})")
            return
        symbols.append(f"({tree.label}")
        for child in tree.children:
            self._write(child, symbols, places)
        symbols.append(f"){tree.label}" if self.closing == "label" else ")")

    def sentence(self, words: Sequence[str]) -> str:
        """The source side: the words, separated by spaces, each after its number if words are numbered."""
        if self.tags != "numbered":
            return " ".join(words)
        return " ".join(f"{number_symbol(place)[1:]} {word}" for place, word in enumerate(words))

    def sources(self, sentences: Sequence[str]) -> list[str]:
        """Sentences of words between single spaces as :meth:`sentence` writes them."""
        return [self.sentence(sentence.split(" ")) for sentence in sentences]

    def symbols(self, texts: Iterable[str]) -> set[str]:
        """The symbols of trees, each on one line; and the numbers, if words are numbered."""
        numbers = [number_symbol(place) for place in range(NUMBERS)] if self.tags == "numbered" else []
        return {*numbers, *(symbol for text in texts for symbol in self.write(parse_tree(text)))}

    def encode(self, texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
        """The piece of each symbol of trees, each on one line; UNK for one that no training tree has."""
        pieces = tokenizer.symbols
        return [[pieces.get(symbol, UNK_ID) for symbol in self.write(parse_tree(text))] for text in texts]

    def read(self, symbols: Sequence[str], words: Sequence[str]) -> Tree:
        """The tree, with these words.

        Raises:
            ValueError: The brackets are not balanced, a phrase is empty, or there are more or fewer tags than words.
        """
        open_nodes: list[tuple[str, list[Tree]]] = [(TOP, [])]
        rest = iter(words)
        for place, symbol in enumerate(symbols):
            if opens_phrase(symbol):
                open_nodes.append((symbol[1:], []))
            elif closes_phrase(symbol):
                label, children = open_nodes.pop()
                if not open_nodes or not children or (self.closing == "label" and symbol != f"){label}"):
                    raise ValueError(f"symbol {place}, {symbol!r}, closes no phrase")
                open_nodes[-1][1].append(Tree(label, tuple(children)))
            else:
                word = next(rest, None)
                if word is None:
                    raise ValueError(f"symbol {place}, {symbol!r}, has no word: there are {len(words)}")
                label = ANY_TAG if self.tags == "numbered" else symbol[1:-1]
                open_nodes[-1][1].append(Tree(label, word=word))
        if len(open_nodes) > 1 or not open_nodes[0][1] or next(rest, None) is not None:
            raise ValueError("a bracket is open, or words are left")
        parts = tuple(open_nodes[0][1])
        return parts[0] if len(parts) == 1 and parts[0].label == TOP else Tree(TOP, parts)


def number_symbol(place: int) -> str:
    """The symbol of a word by its place in the sentence, from 0, and the space before it."""
    return f"\N{LOWER ONE EIGHTH BLOCK}#{place % NUMBERS:02}"


def number_of(symbol: str) -> int | None:
    """The number that a symbol is; None if it is another."""
    return int(symbol[2:]) if symbol.startswith("\N{LOWER ONE EIGHTH BLOCK}#") else None


def is_symbol(piece: str) -> bool:
    """Whether a piece of a tokenizer is a symbol of trees."""
    return piece.startswith(("(", ")")) or number_of(piece) is not None


def opens_phrase(symbol: str) -> bool:
    """Whether a symbol is ``(NP``."""
    return symbol.startswith("(") and not symbol.endswith(")")


def closes_phrase(symbol: str) -> bool:
    """Whether a symbol is ``)NP`` or ``)``."""
    return symbol.startswith(")")
