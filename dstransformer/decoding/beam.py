"""Beam search (section 6.1) over many sentences at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dstransformer.config import DecodingConfig
from dstransformer.corpus import BOS_ID, EOS_ID
from dstransformer.decoding.scoring import best_reachable_score, length_penalty
from dstransformer.model import IncrementalDecoder, Packing, Transformer, cpu

#: Pieces before the end of the sentence are never in an output: they are none, or, for an unknown word, no translation.
FIRST_PIECE = EOS_ID

#: Sentences that are over leave a padded batch once they are more than this share of it: leaving copies the others'
#: caches.
DROP_SHARE = 0.125

_NEVER = float("-inf")


@dataclass(frozen=True)
class Hypothesis:
    """One output of a sentence.

    Attributes:
        tokens: Without begin and end.
        score: ``log_probability / length_penalty(len(tokens) + 1, alpha)``.
        log_probability: Of the tokens and the end, in nats.
    """

    tokens: list[int]
    score: float
    log_probability: float


@torch.inference_mode()
def beam_search(
    model: Transformer, src: Tensor, packing: Packing, settings: DecodingConfig, *, vocab_size: int, n_best: int = 1
) -> list[list[Hypothesis]]:
    """Translate ``n`` sentences.

    At each step the ``2 * beam_size`` best continuations of a sentence's live hypotheses are its candidates. Those
    among the best ``beam_size`` that end the sentence are finished; the best ``beam_size`` of the others live on, so
    that finished hypotheses do not narrow the beam. A beam of one is greedy decoding: it is over when its hypothesis
    ends.

    An output has at most ``max_extra_tokens`` more tokens than its input. At that length a live hypothesis can only
    end, at the model's own probability. A live hypothesis that can no longer get into the ``n_best`` of its sentence
    (see :func:`best_reachable_score`) is not computed where that saves time, and a sentence without others is over.
    Neither changes the result, except among equals: whatever such a hypothesis grows into is less probable than all
    that could still win.

    Args:
        model: In eval mode.
        src: Source tokens, each sentence with its end, ``(src_tokens,)`` int64, on the model's device.
        packing: The sentences of ``src``.
        settings: Beam size, length penalty and limit.
        vocab_size: Number of the tokenizer's pieces; the rows of the embedding beyond them are never an output.
        n_best: Hypotheses wanted of a sentence, at most ``beam_size``.

    Returns:
        For each sentence its hypotheses, best first: ``n_best`` of them, or all where the search finished fewer. There
        is at least one, unless the model computes NaN.
    """
    if not 1 <= n_best <= settings.beam_size:
        raise ValueError(f"n_best is {n_best}, the beam has {settings.beam_size} hypotheses")
    decoder = IncrementalDecoder(model, src, packing, settings.beam_size)
    search = _Search(_limits(model, packing, settings), settings, n_best, src.device, ragged=decoder.ragged)
    while (rows := search.choose_rows()) is not None:
        search.advance(best_next_pieces(decoder.step(*rows), vocab_size, 2 * settings.beam_size))
    return search.results


class NextPieces(NamedTuple):
    """What may come after each of ``rows`` hypotheses.

    Attributes:
        log_probability: Of the best pieces, best first, ``(rows, count)`` fp32.
        tokens: These pieces, ``(rows, count)``.
        end: Log-probability of the end of the sentence, ``(rows,)``.
    """

    log_probability: Tensor
    tokens: Tensor
    end: Tensor


def best_next_pieces(logits: Tensor, vocab_size: int, count: int) -> NextPieces:
    """The ``count`` most probable pieces of each row, or all where there are fewer; see :data:`FIRST_PIECE`."""
    count = min(count, vocab_size - FIRST_PIECE)
    if cpu.can_compute(logits):
        best, tokens, log_mass = cpu.best_pieces(logits, FIRST_PIECE, vocab_size, count)
    else:
        best, tokens = logits[:, FIRST_PIECE:vocab_size].topk(count)
        tokens = tokens + FIRST_PIECE
        log_mass = logits.float().logsumexp(dim=-1)
    return NextPieces(best.float() - log_mass[:, None], tokens, logits[:, EOS_ID].float() - log_mass)


def _limits(model: Transformer, packing: Packing, settings: DecodingConfig) -> list[int]:
    """Most tokens of each sentence's output, its end included, as the source's end is in its length."""
    limits: list[int] = (packing.lengths + settings.max_extra_tokens).tolist()
    if model.config.positions == "learned":
        limits = [min(limit, model.config.max_positions) for limit in limits]
    return limits


class _Search:
    """The hypotheses of sentences that are not over: ``beam_size`` live ones each, and the ``n_best`` finished so far.

    A place that holds no hypothesis has the log-probability and score minus infinity.

    Attributes:
        results: Of the sentences that are over.
    """

    def __init__(
        self, limits: list[int], settings: DecodingConfig, n_best: int, device: torch.device, *, ragged: bool
    ) -> None:
        n, beam = len(limits), settings.beam_size
        self.results: list[list[Hypothesis]] = [[] for _ in limits]
        self._beam = beam
        self._alpha = settings.length_penalty
        self._ragged = ragged
        self._length = 0  # of every live hypothesis
        self._limits = torch.tensor(limits, device=device)
        self._limit_penalties = torch.tensor([length_penalty(limit, self._alpha) for limit in limits], device=device)
        self._numbers = torch.arange(n, device=device)  # place of each sentence in the results
        self._live = torch.full((n, beam), _NEVER, device=device)
        self._live[:, 0] = 0.0
        self._live_tokens = torch.full((n, beam, max(limits)), EOS_ID, device=device)
        self._last_tokens = torch.full((n, beam), BOS_ID, device=device)
        self._rows = self._numbers[:, None].expand(-1, beam)  # of the decoder, that each live one goes on from
        self._chosen = (self._live > _NEVER).flatten()  # of the live, those that the decoder computes
        self._scores = torch.full((n, n_best), _NEVER, device=device)
        self._finished = torch.full((n, n_best), _NEVER, device=device)
        self._finished_tokens = torch.full((n, n_best, max(limits)), EOS_ID, device=device)

    def choose_rows(self) -> tuple[Tensor, Tensor] | None:
        """Take what is over into the results, and choose the live hypotheses that the decoder is to compute.

        A model whose weights are not numbers leaves none.

        Returns:
            Their last tokens and the decoder's rows that they go on from, ``(rows,)`` each; None where all is over.
        """
        hopeful = best_reachable_score(self._live, self._limit_penalties[:, None]) > self._scores[:, -1:]
        over = ~hopeful.any(dim=1)
        n, finished = over.numel(), int(over.sum())
        if finished > (0 if self._ragged or finished == n else DROP_SHARE * n):
            self._collect(over.nonzero().squeeze(1))
            kept = (~over).nonzero().squeeze(1)
            self._keep(kept)
            hopeful = hopeful[kept]
        if finished == n:
            return None
        self._chosen = (hopeful if self._ragged else torch.ones_like(hopeful)).flatten()
        tokens, rows = self._last_tokens.flatten(), self._rows.flatten()
        return (tokens[self._chosen], rows[self._chosen]) if self._ragged else (tokens, rows)

    def advance(self, following: NextPieces) -> None:
        """One step, by what may come after each of the chosen."""
        log_probability, tokens, parents = self._candidates(self._spread(following))
        self._length += 1
        ends = tokens == EOS_ID
        self._finish(log_probability.masked_fill(~ends, _NEVER)[:, : self._beam], parents[:, : self._beam])
        self._live, best = log_probability.masked_fill(ends, _NEVER).topk(self._beam)
        if self._beam == 1:  # greedy
            self._live = self._live.masked_fill(ends[:, :1], _NEVER)
        self._last_tokens, parents = tokens.gather(1, best), parents.gather(1, best)
        self._live_tokens = _rows_of(self._live_tokens, parents)
        self._live_tokens[:, :, self._length - 1] = self._last_tokens
        self._rows = (self._chosen.cumsum(0) - 1).view_as(parents).gather(1, parents)

    def _spread(self, following: NextPieces) -> NextPieces:
        """What may come after each live hypothesis, ``n * beam`` rows: nothing after those that were not computed."""
        if not self._ragged:
            return following
        spread = []
        for part, nothing in zip(following, (_NEVER, FIRST_PIECE, _NEVER), strict=True):
            whole = part.new_full((self._live.numel(), *part.shape[1:]), nothing)
            whole[self._chosen] = part
            spread.append(whole)
        return NextPieces(*spread)

    def _collect(self, sentences: Tensor) -> None:
        """Take what these sentences have finished into the results."""
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
        # At the limit, to end is the only way on.
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
        """Merge hypotheses that end now, ``(n, beam)``, into the ``n_best``."""
        scores = torch.cat((self._scores, log_probability / length_penalty(self._length, self._alpha)), dim=1)
        self._scores, chosen = scores.topk(self._scores.shape[1])
        self._finished = torch.cat((self._finished, log_probability), dim=1).gather(1, chosen)
        # Beyond its tokens a live hypothesis holds ends only.
        tokens = torch.cat((self._finished_tokens, _rows_of(self._live_tokens, parents)), dim=1)
        self._finished_tokens = _rows_of(tokens, chosen)


def _rows_of(tokens: Tensor, rows: Tensor) -> Tensor:
    """Choose hypotheses within each sentence: ``(n, rows, length)`` by ``(n, chosen)`` to ``(n, chosen, length)``."""
    return tokens.gather(1, rows[:, :, None].expand(-1, -1, tokens.shape[2]))
