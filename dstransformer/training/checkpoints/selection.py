"""Which checkpoints of a run are kept, averaged and compared: pure functions of their steps and scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dstransformer.training.checkpoints.format import Checkpoint


def select_kept(checkpoints: Sequence[Checkpoint], keep_last: int, keep_best: int) -> list[Checkpoint]:
    """Select the checkpoints to keep: the newest, and those with the highest scores.

    One that was written because of a stop request only is kept while it is the newest, and counts for neither number.
    """
    ordered = sorted(checkpoints, key=lambda c: c.state.step)
    newest = [*periodic(ordered)[-keep_last:], *ordered[-1:]]
    best = rank_by_score(checkpoints)[:keep_best]
    return [c for c in checkpoints if c in newest or c in best]


def periodic(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints that the run would have without any stop request; all, if it has no other."""
    return [c for c in checkpoints if not c.interim] or list(checkpoints)


def select_newest(checkpoints: Sequence[Checkpoint], steps: Iterable[int], number: int) -> list[Checkpoint]:
    """Select the newest checkpoints to average; those before the window may have been kept only for their score.

    A damaged checkpoint keeps its place in the window, so that no older one takes it.

    Args:
        checkpoints: The intact checkpoints, oldest first; at least one.
        steps: The updates of all checkpoints, damaged ones included.
        number: The size of the window.

    Returns:
        The checkpoints in the window, without those of a stop request. If all of it is damaged, the newest intact one.
    """
    intact = periodic(checkpoints)
    skipped = {c.state.step for c in checkpoints if c not in intact}
    places = {*steps, *(c.state.step for c in checkpoints)} - skipped
    first = sorted(places)[-number:][0]
    return [c for c in intact if c.state.step >= first] or intact[-1:]


def rank_by_score(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Rank the scored checkpoints, best first; of equal scores, the newer first.

    Only scores with the metric and the signature of the newest scored checkpoint are comparable: after a change of
    configuration a score may cover more or fewer sentences, or other tokens.
    """
    scored = sorted((c for c in checkpoints if c.score is not None), key=lambda c: c.state.step)
    comparable = [c for c in scored if _is_same_metric(c, scored[-1])]
    return sorted(comparable, key=lambda c: (_rank(c), c.state.step), reverse=True)


def _is_same_metric(one: Checkpoint, other: Checkpoint) -> bool:
    return (one.metric, one.signature) == (other.metric, other.signature)


def _rank(checkpoint: Checkpoint) -> float:
    score = checkpoint.named_score
    return float(checkpoint.score or 0.0) if score is None else score.rank


def past_warmup(checkpoints: Sequence[Checkpoint], warmup_steps: int) -> list[Checkpoint]:
    """The checkpoints from the end of the warm-up on. Before, weights move too far for an average to be useful."""
    return [checkpoint for checkpoint in checkpoints if checkpoint.state.step >= warmup_steps]
