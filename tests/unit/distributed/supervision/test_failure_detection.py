from __future__ import annotations

import math

import pytest

from dstransformer.distributed.supervision.failure_detection import (
    FAILED,
    LEFT,
    UPDATE,
    Limits,
    Place,
    Seen,
    find_gone,
    find_stuck,
)

LIMITS = Limits(update=30.0, phase=300.0, silence=20.0)
NOW = 1000.0


def seen(
    phase: str, *, steps: int = 9, moved: float = 0.0, heard: float = 0.0, waits: bool = False, lost: str = ""
) -> Seen:
    """A process that is in update 7, and showed progress and a sign of life so many seconds ago."""
    return Seen(Place("node", 7, phase, steps, waits, lost), 1, NOW - heard, NOW - moved)


def verdict(*processes: Seen) -> str | None:
    known = dict(enumerate(processes))
    return find_gone(known, range(len(processes)), LIMITS, NOW, NOW) or find_stuck(known, LIMITS, NOW)


@pytest.mark.parametrize("processes", [
    [seen("validation", moved=299), seen(UPDATE, steps=10, moved=299)],
    [seen(UPDATE, moved=29), seen(UPDATE, moved=29)],
    [seen(UPDATE, heard=19), seen(UPDATE)],
    [seen(FAILED, moved=7), seen(UPDATE)],
    [seen(LEFT, moved=999, heard=999), seen("validation")],
    [seen(UPDATE, heard=7), seen(UPDATE, lost="closed", heard=1, moved=9)],
], ids=["a long validation", "a long update", "a pause", "a new error", "the end", "just lost"])  # fmt: skip
def test_what_may_be_in_order_is_no_verdict(processes: list[Seen]) -> None:
    assert verdict(*processes) is None


@pytest.mark.parametrize(("processes", "said"), [
    ([seen(UPDATE, moved=31), seen(UPDATE, steps=10)],
     "rank 0 on node has been in update 7 for more than 30 s (training.hang_seconds); ranks 0, 1: update 7, update"),
    ([seen("checkpoint", moved=301, waits=True), seen("checkpoint", moved=301)],
     "rank 1 on node has been in checkpoint (update 7) for more than 300 s (training.wait_seconds); "
     "ranks 0, 1: update 7, checkpoint"),
    ([seen(UPDATE), seen("validation", heard=21), seen(UPDATE, heard=22)],
     "ranks 1, 2 on node have not answered for 20 s (training.silence_seconds); "
     "ranks 0, 2: update 7, update; rank 1: update 7, validation"),
    ([seen(UPDATE, lost="closed", moved=9), seen(UPDATE, heard=9)],
     "rank 1 on node has died or stopped; ranks 0, 1: update 7, update"),
    ([seen(UPDATE), seen(UPDATE, lost="closed by peer", moved=33)],
     "rank 1 on node has lost a connection (closed by peer); ranks 0, 1: update 7, update"),
    ([seen(UPDATE), seen(FAILED, moved=9)],
     "rank 1 on node has ended with an error, see there; rank 0: update 7, update; rank 1: update 7, " + FAILED),
], ids=["hangs", "hangs elsewhere", "silent", "dead", "cut off", "failed"])  # fmt: skip
def test_the_process_that_the_others_wait_for_is_named(processes: list[Seen], said: str) -> None:
    assert verdict(*processes) == said


def test_a_process_that_never_reported_is_missed() -> None:
    known = {0: seen(UPDATE)}
    assert find_gone(known, range(2), LIMITS, NOW, NOW - 19) is None
    assert find_gone(known, range(2), LIMITS, NOW, NOW - 21) == (
        "rank 1 (never heard of) has not answered for 20 s (training.silence_seconds); rank 0: update 7, update"
    )


def test_ranks_that_died_together_are_named_together() -> None:
    first = [seen(UPDATE, lost="closed", moved=9), seen(UPDATE, heard=8.1), seen(UPDATE, heard=7.5)]
    assert verdict(*first) is None, "rank 2 may be gone too"
    later = [seen(UPDATE, lost="closed", moved=11), seen(UPDATE, heard=9.1), seen(UPDATE, heard=8.5)]
    assert (verdict(*later) or "").startswith("ranks 1, 2 on node have died or stopped")
    alive = [seen(UPDATE, lost="closed", moved=9), seen(UPDATE, heard=8.1), seen(UPDATE, heard=0.5)]
    assert (verdict(*alive) or "").startswith("rank 1 on node has died or stopped")
    slow = [seen(UPDATE, lost="closed", moved=15), seen(UPDATE, heard=12.1), seen(UPDATE, heard=7.5)]
    assert (verdict(*slow) or "").startswith("rank 1 on node has died or stopped"), "it does not wait for ever"


def test_of_many_ranks_a_message_names_some() -> None:
    said = verdict(*[seen(UPDATE, heard=21)] * 1000)
    assert said is not None
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 992 more on node have not answered" in said
    assert len(said) < 300


def test_zero_turns_a_limit_off() -> None:
    limits = Limits.build(0, 0, 0)
    assert limits == (math.inf, math.inf, math.inf)
    known = {0: seen(UPDATE, moved=9e9, heard=9e9)}
    assert find_gone(known, [0], limits, NOW, NOW) is None
    assert find_stuck(known, limits, NOW) is None
    assert limits.interval == 2.0
    known = {0: seen(UPDATE, lost="closed"), 1: seen(UPDATE, heard=9)}
    assert find_gone(known, range(2), limits, NOW, NOW) is not None, "a broken connection counts all the same"
