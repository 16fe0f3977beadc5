"""Beam search (section 6.1) over many sentences at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from dstransformer.config import DecodingConfig
from dstransformer.data import BOS_ID, EOS_ID
from dstransformer.data.packing import Packing
from dstransformer.decoding.devices import without_cudnn_attention
from dstransformer.model import Ensemble, ops

#: Pieces with smaller numbers (padding, unknown, begin of sentence) are never in an output.
FIRST_PIECE = EOS_ID

#: Finished sentences leave a padded batch when they are more than this share of it.
DROP_SHARE = 0.125

#: Steps between two checks for finished sentences: on a GPU several, as the host waits for it at each.
CHECK_STEPS = {"cpu": 1, "cuda": 4}

#: Initial capacity of a search, in tokens; it doubles when it is full.
FIRST_CAPACITY = 64

_NEVER = float("-inf")


@dataclass(frozen=True)
class Hypothesis:
    """One output of a sentence.

    Attributes:
        tokens: Without begin and end.
        score: ``log_probability / length_penalty(len(tokens) + 1, alpha, offset)``.
        log_probability: The log-probability of the tokens and the end, in nats.
    """

    tokens: list[int]
    score: float
    log_probability: float


def length_penalty(length: int, alpha: float, offset: float = 5.0) -> float:
    """``((5 + length) / 6)^alpha`` (section 6.1; Wu et al., 2016, equation 14, without its coverage term).

    ``length`` includes the end of the sentence, as in the authors' tensor2tensor: an empty output has length 1. Another
    ``offset`` takes the place of 5, and one more that of 6.
    """
    penalty: float = ((offset + length) / (offset + 1.0)) ** alpha
    return penalty


def best_reachable_score(log_probability: Tensor, limit_penalty: Tensor) -> Tensor:
    """An upper bound on the score of every continuation of a live hypothesis.

    A continuation cannot raise the log-probability, which is at most 0, and with ``alpha >= 0`` the penalty that
    divides it is largest at the length limit. So the score is at most ``log_probability / limit_penalty``.

    Args:
        log_probability: The log-probability of the live hypothesis, any shape.
        limit_penalty: :func:`length_penalty` of the longest output allowed, of a shape that broadcasts.
    """
    return log_probability / limit_penalty


def output_limits(
    packing: Packing, settings: DecodingConfig, *, max_positions: int | None, prefixes: Sequence[Sequence[int]] = ()
) -> list[int]:
    """Maximum tokens of each sentence's output, end included, because the length of the source includes its end too.

    Args:
        packing: The sentences of the source.
        settings: The limits.
        max_positions: Positions that the model has learned; None for any number.
        prefixes: See :func:`beam_search`.
    """
    limits: list[int] = (packing.lengths + settings.max_extra_tokens).clamp(min=settings.min_tokens + 1).tolist()
    if prefixes:
        limits = [max(limit, len(prefix) + 1) for limit, prefix in zip(limits, prefixes, strict=True)]
    return limits if max_positions is None else [min(limit, max_positions) for limit in limits]


@torch.inference_mode()
@without_cudnn_attention()
def beam_search(
    model: Ensemble,
    src: Tensor,
    packing: Packing,
    settings: DecodingConfig,
    *,
    vocab_size: int,
    n_best: int = 1,
    prefixes: Sequence[Sequence[int]] = (),
    constraint: Constraint | None = None,
) -> list[list[Hypothesis]]:
    """Translate ``n`` sentences.

    At each step the ``2 * beam_size`` best continuations of a sentence's live hypotheses are its candidates. Those
    among the best ``beam_size`` that end the sentence are finished; the best ``beam_size`` of the others stay live, so
    that finished hypotheses do not narrow the beam. A beam of one is greedy decoding: it stops when its hypothesis
    ends.

    With a ``pruning_threshold`` a live hypothesis whose log-probability is that much below the sentence's best live one
    is dropped (relative threshold pruning; Freitag and Al-Onaizan, 2017). This can change the result.

    An output has at most ``max_extra_tokens`` more tokens than its input. At that length a live hypothesis can only
    end, at the model's own probability. A live hypothesis that can no longer enter the ``n_best`` of its sentence (see
    :func:`best_reachable_score`) is not computed if that saves time; a sentence is done, on a GPU up to three steps
    later, when it has no other. The result is the same, except among equal scores.

    Args:
        model: One model or several, in eval mode.
        src: Source tokens, each sentence with its end, ``(src_tokens,)`` int64, on the model's device.
        packing: The sentences of ``src``.
        settings: Beam size, length penalty and limits.
        vocab_size: Number of pieces of the tokenizer; rows of the embedding beyond it are never an output.
        n_best: Hypotheses to return per sentence, at most ``beam_size``.
        prefixes: For each sentence the tokens that its outputs begin with, at the model's own probability; none
            if empty.
        constraint: What an output may be (then without prefixes); anything if it is None. The pieces that it excludes
            keep their share of the probability.

    Returns:
        The hypotheses of each sentence, best first: ``n_best``, or fewer if the search finished fewer. None at all only
        if the model computes NaN.
    """
    if not 1 <= n_best <= settings.beam_size:
        raise ValueError(f"n_best is {n_best}, but the beam has {settings.beam_size} hypotheses")
    decoder = model.start(src, packing, settings.beam_size)
    limits = output_limits(packing, settings, max_positions=model.max_positions, prefixes=prefixes)
    if constraint is not None:
        limits = list(map(max, limits, constraint.min_lengths))
    search = _Search(limits, settings, vocab_size, n_best, prefixes, constraint, src.device, ragged=decoder.ragged)
    while (rows := search.choose_rows()) is not None:
        search.advance(search.next_pieces(decoder.step(*rows)))
    return search.results


class Constraint(Protocol):
    """What the outputs of a batch of sentences may be. It keeps a state for each hypothesis.

    Attributes:
        pieces: The only pieces that can be in an output, the end first, ``(symbols,)``.
        min_lengths: Tokens of the shortest output of each sentence, with its end.
    """

    pieces: Tensor
    min_lengths: list[int]

    def allowed(self, left: Tensor) -> Tensor:
        """Which pieces may follow, ``(n, beam, symbols)``, if the sentences may have ``left`` more tokens, ``(n,)``."""

    def advance(self, parents: Tensor, tokens: Tensor) -> None:
        """Continue the hypotheses ``parents`` with ``tokens``, ``(n, beam)`` each."""

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but these."""


class NextPieces(NamedTuple):
    """The possible continuations of each of ``rows`` hypotheses.

    Attributes:
        log_probability: Log-probability of the best pieces, best first, ``(rows, count)`` fp32.
        tokens: These pieces, ``(rows, count)``.
        end: Log-probability of the end of the sentence, ``(rows,)`` fp32.
    """

    log_probability: Tensor
    tokens: Tensor
    end: Tensor


class _Search:
    """The hypotheses of unfinished sentences: ``beam_size`` live ones each, and the ``n_best`` finished so far.

    An empty slot has log-probability and score minus infinity.

    Attributes:
        results: The hypotheses of each sentence; empty until the sentence is done.
    """

    def __init__(
        self,
        limits: list[int],
        settings: DecodingConfig,
        vocab_size: int,
        n_best: int,
        prefixes: Sequence[Sequence[int]],
        constraint: Constraint | None,
        device: torch.device,
        *,
        ragged: bool,
    ) -> None:
        n, beam = len(limits), settings.beam_size
        self.results: list[list[Hypothesis]] = [[] for _ in limits]
        self._beam = beam
        self._alpha, self._offset = settings.length_penalty, settings.length_offset
        self._threshold = settings.pruning_threshold
        # A ragged decoder computes only the hypotheses that may still win, and sentences leave it at no cost. A padded
        # one computes the whole beam of each sentence, and copies its caches when some leave: so they leave together.
        self._ragged = ragged
        self._waiting_share = 0.0 if ragged else DROP_SHARE
        self._constraint = constraint
        self._vocab_size, self._min_tokens = vocab_size, settings.min_tokens
        self._check_steps = CHECK_STEPS.get(device.type, 1)
        self._first_limit, self._last_limit = min(limits), max(limits)
        self._prefixes: Tensor | None = None  # the pieces of each by position; -1 after its end
        if longest := max(map(len, prefixes), default=0):
            padded = [[*prefix, *[-1] * (longest - len(prefix))] for prefix in prefixes]
            self._prefixes = torch.tensor(padded, device=device)
        self._length = 0  # of every live hypothesis
        self._limits = torch.tensor(limits, device=device)
        penalties = [length_penalty(limit, self._alpha, self._offset) for limit in limits]
        self._limit_penalties = torch.tensor(penalties, device=device)
        self._numbers = torch.arange(n, device=device)  # index of each sentence in the results
        self._live = torch.full((n, beam), _NEVER, device=device)
        self._live[:, 0] = 0.0
        capacity = min(FIRST_CAPACITY, max(limits))
        self._live_tokens = torch.full((n, beam, capacity), EOS_ID, device=device)
        self._last_tokens = torch.full((n, beam), BOS_ID, device=device)
        self._first_rows = beam * self._numbers[:, None]  # of the first sentences, of each the first row
        self._never = torch.full((), _NEVER, device=device)
        self._rows = self._numbers[:, None].expand(-1, beam)  # the decoder's row that each live one continues
        # The live ones that the decoder computes: of a ragged one a mask, else all.
        self._chosen: Tensor | EllipsisType = (self._live > _NEVER).flatten() if ragged else ...
        self._scores = torch.full((n, n_best), _NEVER, device=device)
        self._finished = torch.full((n, n_best), _NEVER, device=device)
        self._finished_tokens = torch.full((n, n_best, capacity), EOS_ID, device=device)

    def choose_rows(self) -> tuple[Tensor, Tensor] | None:
        """Move finished sentences to the results, and choose the live hypotheses that the decoder computes next.

        If the model computes NaN, no hypothesis stays live.

        Returns:
            Their last tokens and the decoder's rows that they continue, ``(rows,)`` each; None if all are done.
        """
        if self._length % self._check_steps and self._length < self._last_limit:
            return self._last_tokens.flatten(), self._rows.flatten()
        hopeful = best_reachable_score(self._live, self._limit_penalties[:, None]) > self._scores[:, -1:]
        done = ~hopeful.any(dim=1)
        n, finished = done.numel(), int(done.sum())
        if finished == n or finished > self._waiting_share * n:
            self._collect(done.nonzero().squeeze(1))
            kept = (~done).nonzero().squeeze(1)
            self._keep(kept)
            hopeful = hopeful[kept]
        if finished == n:
            return None
        if self._ragged:
            self._chosen = hopeful.flatten()
        return self._last_tokens.flatten()[self._chosen], self._rows.flatten()[self._chosen]

    def next_pieces(self, logits: Tensor) -> NextPieces:
        """The ``2 * beam_size`` best pieces that may follow each chosen row, or all if there are fewer.

        Args:
            logits: ``(rows, vocabulary)``.
        """
        if self._constraint is not None:
            pieces = self._constraint.pieces
            allowed = self._constraint.allowed(self._limits - self._length).flatten(0, 1)[self._chosen]
            _, _, log_sum = ops.best_pieces(logits, FIRST_PIECE, logits.shape[1], 1)
            scores = logits.index_select(1, pieces).float().masked_fill(~allowed, _NEVER) - log_sum[:, None]
            best, columns = scores.topk(min(2 * self._beam, pieces.numel()))
            return NextPieces(best, pieces[columns], scores[:, 0])
        first = FIRST_PIECE if self._length >= self._min_tokens else FIRST_PIECE + 1  # not the end
        count = min(2 * self._beam, self._vocab_size - first)
        best, tokens, log_sum = ops.best_pieces(logits, first, self._vocab_size, count)
        best = best - log_sum[:, None]
        if self._prefixes is not None and self._length < self._prefixes.shape[1]:
            forced = self._prefixes[:, self._length, None].expand(-1, self._beam).flatten()[self._chosen]
            is_forced, piece = (forced >= 0)[:, None], forced.clamp(min=0)[:, None]
            only = torch.full_like(best, _NEVER)
            only[:, :1] = logits.gather(1, piece).float() - log_sum[:, None]
            best, tokens = torch.where(is_forced, only, best), torch.where(is_forced, piece, tokens)
        return NextPieces(best, tokens, logits[:, EOS_ID].float() - log_sum)

    def advance(self, following: NextPieces) -> None:
        """Take one step with the continuations of the chosen hypotheses."""
        log_probability, tokens, parents = self._candidates(self._scatter(following))
        self._length += 1
        ends = tokens == EOS_ID
        finished = torch.where(ends, log_probability, self._never)
        self._finish(finished[:, : self._beam], parents[:, : self._beam])
        self._live, best = log_probability.masked_fill(ends, _NEVER).topk(self._beam)
        if self._beam == 1:  # greedy
            self._live = self._live.masked_fill(ends[:, :1], _NEVER)
        if self._threshold:
            self._live = self._live.masked_fill(self._live < self._live[:, :1] - self._threshold, _NEVER)
        self._last_tokens, parents = tokens.gather(1, best), parents.gather(1, best)
        self._live_tokens = _select(self._live_tokens, parents)
        if self._length > (capacity := self._live_tokens.shape[2]):
            self._live_tokens = pad(self._live_tokens, (0, capacity), value=EOS_ID)
            self._finished_tokens = pad(self._finished_tokens, (0, capacity), value=EOS_ID)
        self._live_tokens[:, :, self._length - 1] = self._last_tokens
        if isinstance(self._chosen, Tensor):
            self._rows = (self._chosen.cumsum(0) - 1).view_as(parents).gather(1, parents)
        else:
            self._rows = self._first_rows[: len(parents)] + parents
        if self._constraint is not None:
            self._constraint.advance(parents, self._last_tokens)

    def _scatter(self, following: NextPieces) -> NextPieces:
        """Continuations of all live hypotheses, ``n * beam`` rows; impossible ones where none were computed."""
        if not isinstance(self._chosen, Tensor):
            return following
        scattered = []
        for part, nothing in zip(following, (_NEVER, FIRST_PIECE, _NEVER), strict=True):
            of_all = part.new_full((self._live.numel(), *part.shape[1:]), nothing)
            of_all[self._chosen] = part
            scattered.append(of_all)
        return NextPieces(*scattered)

    def _collect(self, sentences: Tensor) -> None:
        """Copy the finished hypotheses of these sentences to the results."""
        numbers = self._numbers[sentences].tolist()
        columns = (self._finished_tokens, self._scores, self._finished)
        for number, *hypotheses in zip(numbers, *(column[sentences].tolist() for column in columns), strict=True):
            self.results[number] = [
                Hypothesis(tokens[: tokens.index(EOS_ID)], score, log_probability)
                for tokens, score, log_probability in zip(*hypotheses, strict=True)
                if score > _NEVER
            ]

    def _keep(self, sentences: Tensor) -> None:
        """Drop all sentences but these."""
        if self._constraint is not None:
            self._constraint.keep(sentences)
        if self._prefixes is not None:
            self._prefixes = self._prefixes[sentences]
        self._limits, self._limit_penalties = self._limits[sentences], self._limit_penalties[sentences]
        self._numbers = self._numbers[sentences]
        self._live, self._live_tokens = self._live[sentences], self._live_tokens[sentences]
        self._last_tokens, self._rows = self._last_tokens[sentences], self._rows[sentences]
        self._scores, self._finished = self._scores[sentences], self._finished[sentences]
        self._finished_tokens = self._finished_tokens[sentences]

    def _candidates(self, following: NextPieces) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, last token and parent of the candidates, best first, ``(n, 2 * beam)`` each."""
        n, beam = self._live.shape
        # The best of a sentence are among the best of its rows.
        per_row = following.tokens.shape[1]
        log_probability, chosen = (following.log_probability + self._live.view(-1, 1)).view(n, -1).topk(2 * beam)
        tokens = following.tokens.view(n, -1).gather(1, chosen)
        parents = chosen // per_row
        if self._length + 1 < self._first_limit:
            return log_probability, tokens, parents
        # At the limit a hypothesis can only end.
        at_limit = (self._length + 1 >= self._limits)[:, None]
        ends = self._live + following.end.view(n, beam)
        only_ends = torch.cat((ends, torch.full_like(ends, _NEVER)), dim=1)
        every_row = torch.arange(2 * beam, device=parents.device) % beam
        return (
            torch.where(at_limit, only_ends, log_probability),
            tokens.masked_fill(at_limit, EOS_ID),
            torch.where(at_limit, every_row, parents),
        )

    def _finish(self, log_probability: Tensor, parents: Tensor) -> None:
        """Merge the hypotheses that end at this step, ``(n, beam)``, into the ``n_best``."""
        penalty = length_penalty(self._length, self._alpha, self._offset)
        scores = torch.cat((self._scores, log_probability / penalty), dim=1)
        self._scores, chosen = scores.topk(self._scores.shape[1])
        self._finished = torch.cat((self._finished, log_probability), dim=1).gather(1, chosen)
        # After its tokens a live hypothesis is filled with end tokens.
        tokens = torch.cat((self._finished_tokens, _select(self._live_tokens, parents)), dim=1)
        self._finished_tokens = _select(tokens, chosen)


def _select(tokens: Tensor, rows: Tensor) -> Tensor:
    """Choose hypotheses within each sentence: ``(n, rows, length)`` by ``(n, chosen)`` to ``(n, chosen, length)``."""
    return tokens.gather(1, rows[:, :, None].expand(-1, -1, tokens.shape[2]))
