from __future__ import annotations

import math

import pytest

from dstransformer.distributed.supervision.failure_detection import (
    FAILED,
    LEFT,
    UPDATE,
    Heartbeat,
    Limits,
    RankStatus,
    find_dead,
    find_hung,
)

LIMITS = Limits(update=30.0, phase=300.0, silence=20.0)
NOW = 1000.0


def beat(
    phase: str,
    *,
    steps: int = 9,
    progress: float = 0.0,
    heartbeat: float = 0.0,
    waits: bool = False,
    lost: str = "",
) -> Heartbeat:
    """A process that is in update 7, and showed progress and sent a heartbeat so many seconds ago."""
    return Heartbeat(RankStatus("node", 7, phase, steps, waits, lost), 1, NOW - heartbeat, NOW - progress)


def verdict(*processes: Heartbeat) -> str | None:
    known = dict(enumerate(processes))
    found = find_dead(known, range(len(processes)), LIMITS, NOW, NOW) or find_hung(known, LIMITS, NOW)
    return found and found.text


@pytest.mark.parametrize("processes", [
    [beat("validation", progress=299), beat(UPDATE, steps=10, progress=299)],
    [beat(UPDATE, progress=29), beat(UPDATE, progress=29)],
    [beat(UPDATE, heartbeat=19), beat(UPDATE)],
    [beat(FAILED, progress=7), beat(UPDATE)],
    [beat(LEFT, progress=999, heartbeat=999), beat("validation")],
    [beat(UPDATE, heartbeat=7), beat(UPDATE, lost="closed", heartbeat=1, progress=9)],
], ids=["a long validation", "a long update", "a pause", "a new error", "the end", "just lost"])  # fmt: skip
def test_what_may_be_in_order_is_no_verdict(processes: list[Heartbeat]) -> None:
    assert verdict(*processes) is None


@pytest.mark.parametrize(("processes", "said"), [
    ([beat(UPDATE, progress=31), beat(UPDATE, steps=10)],
     "rank 0 on node has been in update 7 for more than 30 s (training.hang_seconds); ranks 0, 1: update 7, update"),
    ([beat("checkpoint", progress=301, waits=True), beat("checkpoint", progress=301)],
     "rank 1 on node has been in checkpoint (update 7) for more than 300 s (training.wait_seconds); "
     "ranks 0, 1: update 7, checkpoint"),
    ([beat(UPDATE), beat("validation", heartbeat=21), beat(UPDATE, heartbeat=22)],
     "ranks 1, 2 on node have not answered for 20 s (training.silence_seconds); "
     "ranks 0, 2: update 7, update; rank 1: update 7, validation"),
    ([beat(UPDATE, lost="closed", progress=9), beat(UPDATE, heartbeat=9)],
     "rank 1 on node has died or stopped; ranks 0, 1: update 7, update"),
    ([beat(UPDATE), beat(UPDATE, lost="closed by peer", progress=33)],
     "rank 1 on node has lost a connection (closed by peer); ranks 0, 1: update 7, update"),
    ([beat(UPDATE), beat(FAILED, progress=9)],
     "rank 1 on node has ended with an error, see there; rank 0: update 7, update; rank 1: update 7, " + FAILED),
], ids=["hangs", "hangs elsewhere", "silent", "dead", "cut off", "failed"])  # fmt: skip
def test_the_process_that_the_others_wait_for_is_named(processes: list[Heartbeat], said: str) -> None:
    assert verdict(*processes) == said


def test_a_process_that_never_reported_is_missed() -> None:
    known = {0: beat(UPDATE)}
    assert find_dead(known, range(2), LIMITS, NOW, NOW - 19) is None
    said = "rank 1 (never heard of) has not answered for 20 s (training.silence_seconds); rank 0: update 7, update"
    assert find_dead(known, range(2), LIMITS, NOW, NOW - 21) == ("silent", [1], said)


def test_ranks_that_died_together_are_named_together() -> None:
    first = [
        beat(UPDATE, lost="closed", progress=9),
        beat(UPDATE, heartbeat=8.1),
        beat(UPDATE, heartbeat=7.5),
    ]
    assert verdict(*first) is None, "rank 2 may be gone too"
    later = [
        beat(UPDATE, lost="closed", progress=11),
        beat(UPDATE, heartbeat=9.1),
        beat(UPDATE, heartbeat=8.5),
    ]
    assert (verdict(*later) or "").startswith("ranks 1, 2 on node have died or stopped")
    alive = [
        beat(UPDATE, lost="closed", progress=9),
        beat(UPDATE, heartbeat=8.1),
        beat(UPDATE, heartbeat=0.5),
    ]
    assert (verdict(*alive) or "").startswith("rank 1 on node has died or stopped")
    slow = [
        beat(UPDATE, lost="closed", progress=15),
        beat(UPDATE, heartbeat=12.1),
        beat(UPDATE, heartbeat=7.5),
    ]
    assert (verdict(*slow) or "").startswith("rank 1 on node has died or stopped"), "it does not wait for ever"


def test_of_many_ranks_a_message_names_some() -> None:
    said = verdict(*[beat(UPDATE, heartbeat=21)] * 1000)
    assert said is not None
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 992 more on node have not answered" in said
    assert len(said) < 300


def test_zero_turns_a_limit_off() -> None:
    limits = Limits.build(0, 0, 0)
    assert limits == (math.inf, math.inf, math.inf)
    known = {0: beat(UPDATE, progress=9e9, heartbeat=9e9)}
    assert find_dead(known, [0], limits, NOW, NOW) is None
    assert find_hung(known, limits, NOW) is None
    assert limits.interval == 2.0
    known = {0: beat(UPDATE, lost="closed"), 1: beat(UPDATE, heartbeat=9)}
    assert find_dead(known, range(2), limits, NOW, NOW) is not None, "a broken connection counts all the same"
