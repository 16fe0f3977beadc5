"""What a session answers in a run of one process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.supervision.session import Flags, Session
from dstransformer.distributed.supervision.stop_signals import StopRequest
from dstransformer.distributed.world import World, join_world, leave_world
from dstransformer.errors import ConfigError


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DS_ACCELERATOR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield join_world(read_processes(os.environ))
    leave_world()


def test_a_stop_request_is_seen_wherever_it_is_looked_for(world: World) -> None:
    stop = StopRequest()
    session = Session(world, stop)
    assert not session.should_stop()
    assert session.wait(0.0)
    assert session.combine_flags(save=True, writing=False, nonfinite=False) == Flags(False, True, False, False)
    stop.received = "SIGTERM"
    assert session.should_stop()
    assert not session.wait(3600.0)
    assert session.combine_flags(save=False, writing=True, nonfinite=True) == Flags(True, False, True, True)
    assert session.stopped_by == "SIGTERM"


def test_a_result_is_returned_and_an_error_raised(world: World) -> None:
    session = Session(world)
    assert session.agree_on("setup") == "setup"
    with pytest.raises(ConfigError, match="wrong") as raised:
        session.agree_on(ConfigError("wrong"))
    assert raised.value.shared


def test_a_failure_is_reported_once_and_success_not_at_all(world: World) -> None:
    session, reported = Session(world), list[BaseException | None]()
    with session.reporting_failure(reported.append):
        pass
    assert not reported
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), session.reporting_failure(reported.append):
        raise error
    assert reported == [error]
