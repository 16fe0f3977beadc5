"""What a driver is asked for and what it answers: the same clock and the same count of tokens for every system.

Standard library only: this runs in the environment of every peer.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

#: The warm-up before the clock starts: at least this many updates and seconds. They trace, allocate, choose kernels,
#: and take memory from the kernel: batches differ in size, and a heap stops growing only when it has met most of them.
WARM_UP_UPDATES = 3
WARM_UP_SECONDS = 12.0

#: The clock runs for at least this many updates, however long they take.
MIN_UPDATES = 3


@dataclass(frozen=True)
class Request:
    """One measurement.

    Attributes:
        text: Folder with ``{train,valid}.{src,tgt}`` (pieces, separated by spaces) and ``vocabulary.txt``.
        work: Empty folder for whatever the system writes.
        tokens: Target tokens of an update, about.
        peak_rate: The learning rate after ``warmup`` updates; it rises to it in a line, then falls with the root of the
            update, as in the paper.
        seconds: That the clock runs, at least.
        model: Where the trained model goes, a folder that is not there yet; empty where nobody wants it.
    """

    text: str
    work: str
    layers: int
    d_model: int
    d_ff: int
    heads: int
    precision: str
    tokens: int
    dropout: float
    label_smoothing: float
    peak_rate: float
    warmup: int
    seconds: float
    model: str = ""

    @property
    def output(self) -> Path:
        """For a system that wants a folder for its model in any case."""
        return Path(self.model or f"{self.work}/model")

    @property
    def noam_scale(self) -> float:
        """``s`` of ``s * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)``, which has its peak at ``warmup``."""
        return self.peak_rate * math.sqrt(self.d_model * self.warmup)

    def lines(self, name: str) -> Iterator[list[str]]:
        """The sentences of a file of the text, as pieces."""
        with (Path(self.text) / name).open(encoding="utf-8") as file:
            for line in file:
                yield line.split()

    def vocabulary(self) -> list[str]:
        """The pieces in the order of their ids; the first four are pad, unknown, begin and end of sentence."""
        return (Path(self.text) / "vocabulary.txt").read_text(encoding="utf-8").split("\n")[:-1]


@dataclass(frozen=True)
class Measurement:
    """What happened while the clock ran. Tokens are pieces of real sentences plus one end of sentence on each side."""

    updates: int
    src_tokens: int
    tgt_tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return (self.src_tokens + self.tgt_tokens) / self.seconds


def warmed_up(ends: Sequence[float]) -> bool:
    """Whether the warm-up was over with the last of these updates, given when each ended in seconds."""
    return len(ends) >= WARM_UP_UPDATES and ends[-1] - ends[0] >= WARM_UP_SECONDS


class Complete(BaseException):
    """Unwinds the training loop of a peer once the measurement is complete."""


class Meter:
    """Counts while a peer trains: ``count`` each batch, ``end_update`` after each optimizer step."""

    def __init__(self, request: Request) -> None:
        self._seconds = request.seconds
        self._model = request.model
        self._ends: list[float] = []
        self._began: float | None = None
        self._clear()

    def _clear(self) -> None:
        self._updates = self._src_tokens = self._tgt_tokens = 0

    def count(self, src_tokens: int, tgt_tokens: int) -> None:
        """Add a batch, ends of sentences included."""
        self._src_tokens += int(src_tokens)
        self._tgt_tokens += int(tgt_tokens)

    def end_update(self, save: Callable[[str], object]) -> None:
        """Look at the clock; raises ``Complete`` once it has run long enough.

        Args:
            save: Leaves the model in the folder that was asked for. Called at the end, if a model is wanted.
        """
        self._updates += 1
        now = time.perf_counter()
        if self._began is None:
            self._ends.append(now)
            if warmed_up(self._ends):
                self._began = now
                self._clear()
        elif now - self._began >= self._seconds and self._updates >= MIN_UPDATES:
            self.measurement = Measurement(self._updates, self._src_tokens, self._tgt_tokens, now - self._began)
            if self._model:
                save(self._model)
            raise Complete

    @contextmanager
    def until_complete(self) -> Iterator[None]:
        """Around the peer's own training entry: it ends by ``Complete`` and by nothing else."""
        try:
            yield
        except Complete:
            return
        raise RuntimeError("training ended before the measurement was complete")


def main(train: Callable[[Request, Meter], None]) -> None:
    """A driver's main program: request as JSON on the command line, measurement as JSON on the last line."""
    request = Request(**json.loads(sys.argv[1]))
    sys.argv[1:] = []
    meter = Meter(request)
    with meter.until_complete():
        train(request, meter)
    print("\n" + json.dumps(asdict(meter.measurement)), flush=True)
