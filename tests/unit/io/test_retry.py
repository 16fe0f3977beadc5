"""What happens to writes that a disk refuses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dstransformer.errors import StorageError
from dstransformer.io.retry import MAX_TRIES, Backlog, RetryPolicy


class Disk:
    """A disk that refuses the first so many writes."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.written: list[str] = []

    def save(self) -> str:
        if self.refusals:
            self.refusals -= 1
            raise StorageError("cannot write it")
        return "done"

    def write(self, items: Sequence[str]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise OSError("no room")
        self.written += items


def test_a_write_is_tried_several_times_unless_the_program_stops() -> None:
    failures: list[tuple[str, int]] = []
    waits: list[float] = []

    def stop(_: float) -> None:
        raise InterruptedError

    policy = RetryPolicy(7.0, waits.append, lambda what, error, left: failures.append((f"{what}: {error}", left)))
    assert policy.run("the bundle", Disk(MAX_TRIES - 1).save) == "done"
    assert failures == [("the bundle: cannot write it", left) for left in (4, 3, 2, 1)]
    assert waits == [7.0] * 4
    with pytest.raises(StorageError, match=r"bundle .*5 tries: cannot write it"):
        policy.run("the bundle", Disk(MAX_TRIES).save)
    with pytest.raises(InterruptedError):
        RetryPolicy(7.0, stop, lambda *_: None).run("the bundle", Disk(1).save)


def test_the_error_of_all_processes_stays_one_of_all_processes() -> None:
    error = StorageError("full")
    error.shared = True

    def refuse() -> None:
        raise error

    with pytest.raises(StorageError) as raised:
        RetryPolicy(0.0, lambda _: None, lambda *_: None).run("it", refuse)
    assert raised.value.shared


def test_a_backlog_keeps_the_order_and_reports_once() -> None:
    disk, said = Disk(2), list[str]()
    backlog = Backlog(disk.write, lambda error: said.append(str(error)), lambda: said.append("again"))
    assert str(backlog.add("a")) == "no room"
    assert backlog.add("b") is not None
    assert (len(backlog), disk.written, said) == (2, [], ["no room"])
    assert backlog.add("c") is None
    assert (len(backlog), disk.written, said) == (0, ["a", "b", "c"], ["no room", "again"])
    assert backlog.flush() is None
    assert disk.written == ["a", "b", "c"]
