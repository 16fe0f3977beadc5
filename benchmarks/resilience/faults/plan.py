"""Which faults a campaign injects, and when: a pure function of the seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

STAGES = (0, 1, 2, 3)
PRECISIONS = ("fp32", "bf16", "fp16")

#: Numbers of processes that a run with a changing layout is started with.
WORLD_SIZES = (1, 2, 4)

#: How often a run saves and validates, in updates.
SAVE_EVERY, VALIDATE_EVERY = 5, 7

#: When a fault strikes: before the first update of a start; in an update; while a checkpoint is being written; while
#: its manifest is written and the folder gets its name; in a validation; between the last update and the end.
START, UPDATE, CHECKPOINT, RENAME, VALIDATION, END = "start", "update", "checkpoint", "rename", "validation", "end"

#: The kinds of faults, and the moments of each.
KINDS = {
    "kill-rank": (START, UPDATE, CHECKPOINT, RENAME, VALIDATION, END),
    "kill-all": (START, UPDATE, CHECKPOINT, RENAME, VALIDATION, END),
    "kill-launcher": (UPDATE, CHECKPOINT),
    "stop-rank": (UPDATE, CHECKPOINT, VALIDATION),
    "freeze-rank": (UPDATE, CHECKPOINT),
    "sigterm": (START, UPDATE, CHECKPOINT, VALIDATION, END),
    "sigusr1": (START, UPDATE, CHECKPOINT, VALIDATION, END),
    "full-disk": (UPDATE, CHECKPOINT),
    "read-only": (UPDATE, CHECKPOINT),
    "vanished": (UPDATE, CHECKPOINT),
    "flipped-bit": (UPDATE, CHECKPOINT),
    "truncated-file": (UPDATE,),
    "missing-file": (UPDATE,),
}

#: Faults of the file system, which take root and mounts.
DISK = ("full-disk", "read-only", "vanished")

#: Requests to stop.
ASKS = ("sigterm", "sigusr1")

#: Faults of the newest checkpoint, after all processes were killed.
DAMAGE = ("flipped-bit", "truncated-file", "missing-file")

_FAULTS_OF_A_CASE = 5
_UPDATES_OF_A_FAULT = 5


class Fault(NamedTuple):
    """A fault.

    Attributes:
        kind: One of :data:`KINDS`.
        moment: When it strikes, see :data:`START` and so on.
        update: It strikes when this update has been logged, or later.
        share: From 0 to 1: how far into the moment.
        choice: A number that chooses the rank, the launcher, the file, the bit.
    """

    kind: str
    moment: str
    update: int
    share: float
    choice: int

    @property
    def name(self) -> str:
        """Kind and moment."""
        return f"{self.kind}/{self.moment}"


class Case(NamedTuple):
    """A run with its faults.

    Attributes:
        stage: The ZeRO stage.
        precision: The precision.
        world_sizes: Number of processes at each start; from the last one on the last.
        faults: In the order of their updates.
        updates: Number of updates of the run.
    """

    stage: int
    precision: str
    world_sizes: tuple[int, ...]
    faults: tuple[Fault, ...]
    updates: int

    @property
    def name(self) -> str:
        """A name for folders and tables."""
        return f"zero{self.stage}-{self.precision}-{'moving' if self.is_moving else 'fixed'}"

    @property
    def is_moving(self) -> bool:
        """Whether the number of processes changes."""
        return len(set(self.world_sizes)) > 1


def plan_campaign(
    seed: int,
    number: int,
    *,
    stages: Sequence[int] = STAGES,
    precisions: Sequence[str] = PRECISIONS,
) -> list[Case]:
    """Plan the runs and their faults.

    Kinds and moments are dealt like cards, so that each has come once before one comes again.

    Args:
        seed: Of all choices.
        number: Number of faults.
        stages: ZeRO stages.
        precisions: Precisions.
    """
    chance = random.Random(seed)
    combinations = list(itertools.product(stages, precisions))
    chance.shuffle(combinations)
    cases = max(1, min(2 * len(combinations), round(number / _FAULTS_OF_A_CASE)))
    layouts = [
        (stage, precision, (place + turn) % 2 == 1)
        for turn in range(2)
        for place, (stage, precision) in enumerate(combinations)
    ][:cases]
    deck = [(kind, moment) for kind, moments in KINDS.items() for moment in moments]
    pairs = list(itertools.islice(_deal(chance, deck), number))
    updates = _UPDATES_OF_A_FAULT * (-(-number // cases) + 2)
    return [_plan_case(chance, layout, pairs[place::cases], updates) for place, layout in enumerate(layouts) if pairs]


def _deal(chance: random.Random, deck: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    while True:
        yield from chance.sample(deck, len(deck))


def _plan_case(
    chance: random.Random, layout: tuple[int, str, bool], pairs: Sequence[tuple[str, str]], updates: int
) -> Case:
    stage, precision, moving = layout
    # Nothing can follow a fault at the end; damage takes two checkpoints.
    ordered = sorted(pairs, key=lambda pair: (pair[1] == END) + 0.5 * (pair[0] in DAMAGE))
    width = updates / (len(pairs) + 1)
    faults = tuple(
        Fault(kind, moment, max(1, int(width * (place + chance.random()))), chance.random(), chance.getrandbits(30))
        for place, (kind, moment) in enumerate(ordered)
    )
    sizes = tuple(chance.choice(WORLD_SIZES) for _ in range(len(faults) + 1)) if moving else (2,)
    if moving and len(set(sizes)) == 1:
        sizes = (*sizes, 1 if sizes[0] == 2 else 2)
    return Case(stage, precision, sizes, faults, updates)
