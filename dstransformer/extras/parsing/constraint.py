"""Constrained beam search: only trees over exactly the words of the sentence can be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dstransformer.data import EOS_ID
from dstransformer.extras.parsing.linearise import NUMBERS, closes_phrase, number_of, opens_phrase

#: Maximum number of open brackets; the deepest tree of the Penn Treebank has 36.
MAX_DEPTH = 64

#: Minimum number of symbols of a tree besides its words: a bracket that opens and one that closes.
MIN_BRACKETS = 2

_END, _OPEN, _WORD, _CLOSE = range(4)


class SymbolTable:
    """The pieces that trees are written with, and what each does.

    Args:
        symbols: The ids of the symbols, by their text, see :class:`Linearisation`. Each that opens a phrase
            has one that closes it.
        device: Where the search runs.

    Attributes:
        pieces: The ids that can be in an output, the end among them, ``(symbols,)``.
        kinds: What each does: ends the tree, opens a phrase, is a word, closes a phrase; ``(symbols,)``.
        never_closes: Whether it does anything but close a phrase, ``(symbols,)``.
        all_columns: The columns, ``(symbols,)``.
        closers: For each that opens a phrase the column of the symbol that closes it, ``(symbols,)``.
        numbers: The number of each that is a word by its number, -1 for any other; ``(symbols,)``.
        columns: The column of each piece in ``pieces``, ``(vocabulary up to the last symbol,)``.
    """

    def __init__(self, symbols: Mapping[str, int], device: torch.device) -> None:
        names = sorted(symbols, key=lambda name: symbols[name])
        columns = {name: column for column, name in enumerate(names, 1)}
        pieces = [EOS_ID, *(symbols[name] for name in names)]
        kinds = [_END] + [_OPEN if opens_phrase(name) else _CLOSE if closes_phrase(name) else _WORD for name in names]
        closers = [columns.get(f"){name[1:]}", columns.get(")", 0)) if opens_phrase(name) else 0 for name in names]
        self.pieces = torch.tensor(pieces, device=device)
        self.kinds = torch.tensor(kinds, device=device)
        self.never_closes = self.kinds != _CLOSE
        self.all_columns = torch.arange(len(pieces), device=device)
        self.closers = torch.tensor([0, *closers], device=device)
        numbers = [-1 if (number := number_of(name)) is None else number for name in names]
        self.numbers = torch.tensor([-1, *numbers], device=device)
        self.columns = torch.zeros(max(pieces) + 1, dtype=torch.int64, device=device)
        self.columns[self.pieces] = torch.arange(len(pieces), device=device)


class TreeConstraint:
    """What each hypothesis of a beam search may be continued with, so that it becomes a tree.

    A tree has each word of its sentence once, in at least one phrase, unless it is the only word; no phrase is empty;
    and the outermost phrase is the only one. Words that are numbered come in order. All hypotheses are advanced and
    masked together.

    Args:
        table: The symbols.
        words: The number of words of each sentence, at least 1.
        beam_size: The number of hypotheses of each sentence.
    """

    def __init__(self, table: SymbolTable, words: Sequence[int], beam_size: int) -> None:
        self.pieces = table.pieces
        #: Tokens of the shortest output of each sentence, with its end.
        self.min_lengths = [count + MIN_BRACKETS + 1 for count in words]
        self._table = table
        device = table.pieces.device
        self._total = torch.tensor(words, device=device)[:, None]
        self._words = torch.zeros(len(words), beam_size, dtype=torch.int64, device=device)
        self._depth = torch.zeros_like(self._words)
        self._opened = torch.zeros_like(self._words, dtype=torch.bool)
        # The columns of the symbols that close the phrases that are open.
        self._open = torch.zeros(len(words), beam_size, MAX_DEPTH, dtype=torch.int64, device=device)

    def allowed(self, left: Tensor) -> Tensor:
        """Which of ``pieces`` may follow each hypothesis, ``(n, hypotheses, symbols)``.

        Args:
            left: Tokens that each sentence may still have, with the end, ``(n,)``.
        """
        words_left = self._total - self._words
        shortest = words_left + self._depth + 1
        is_open, any_left = self._depth > 0, words_left > 0
        by_kind = torch.stack(
            (
                ~is_open & ~any_left,
                any_left & (self._depth < MAX_DEPTH) & (left[:, None] >= shortest + 2),
                any_left & (is_open | (self._total == 1)),
                is_open & ~self._opened & ((self._depth > 1) | ~any_left),
            ),
            dim=-1,
        )
        innermost = self._open.gather(2, (self._depth - 1).clamp(min=0)[:, :, None])
        allowed = by_kind.index_select(2, self._table.kinds)
        allowed &= self._table.never_closes | (self._table.all_columns == innermost)
        return allowed & ((self._table.numbers < 0) | (self._table.numbers == (self._words % NUMBERS)[:, :, None]))

    def advance(self, parents: Tensor, tokens: Tensor) -> None:
        """Continue hypotheses.

        Args:
            parents: The hypothesis of the same sentence that each continues, ``(n, hypotheses)``.
            tokens: The piece that follows, ``(n, hypotheses)``.
        """
        columns = self._table.columns[tokens.clamp(max=self._table.columns.numel() - 1)]
        kinds = self._table.kinds[columns]
        opens = kinds == _OPEN
        self._words = self._words.gather(1, parents) + (kinds == _WORD)
        depth = self._depth.gather(1, parents)
        self._open = self._open.gather(1, parents[:, :, None].expand(-1, -1, MAX_DEPTH))
        top = depth.clamp(max=MAX_DEPTH - 1)[:, :, None]
        closers = torch.where(opens, self._table.closers[columns], self._open.gather(2, top).squeeze(2))
        self._open = self._open.scatter(2, top, closers[:, :, None])
        self._depth = (depth + opens.long() - (kinds == _CLOSE).long()).clamp(min=0)
        self._opened = opens

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but these."""
        self._total, self._words, self._depth = self._total[sentences], self._words[sentences], self._depth[sentences]
        self._opened, self._open = self._opened[sentences], self._open[sentences]
