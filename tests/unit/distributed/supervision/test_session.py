"""What a session answers in a run of one process."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dstransformer.config import load_config
from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.supervision.session import Flags, Session, supervise
from dstransformer.distributed.supervision.stop_signals import StopRequest, StopRequested
from dstransformer.distributed.world import World, join_world, leave_world
from dstransformer.errors import UserError


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
    session.wait(0.0)
    assert session.combine_flags(save=True, writing=False, nonfinite=False) == Flags(False, True, False, False)
    stop.received = "SIGTERM"
    with pytest.raises(StopRequested):
        session.wait(3600.0)
    assert session.combine_flags(save=False, writing=True, nonfinite=True) == Flags(True, False, True, True)
    assert session.stopped_by == "SIGTERM"


def test_a_failure_is_reported_once_and_success_not_at_all(world: World) -> None:
    session, reported = Session(world), list[BaseException | None]()
    with session.reporting_failure(reported.append):
        pass
    assert not reported
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), session.reporting_failure(reported.append):
        raise error
    assert reported == [error]


def test_what_a_notebook_cannot_do_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = list[UserError]()

    def start() -> None:
        with pytest.raises(UserError) as error, supervise(read_processes({}), load_config("toy"), tmp_path):
            pass
        raised.append(error.value)

    monkeypatch.setitem(sys.modules, "deepspeed.comm.comm", SimpleNamespace(cdb=None))
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "in the main thread only: call train there" in str(raised[0])
    monkeypatch.setitem(sys.modules, "deepspeed.comm.comm", SimpleNamespace(cdb=object()))
    start()
    assert "this process has already trained" in str(raised[1])
    assert "restart the kernel" in str(raised[1])
    assert list(tmp_path.iterdir()) == []


def test_the_only_process_may_join_again_after_any_error(world: World) -> None:
    with pytest.raises(ValueError, match="wrong"), Session(world)._leaving_world():
        raise ValueError("wrong")
    again = join_world(read_processes(os.environ))
    assert again.gather(1) == [1]
