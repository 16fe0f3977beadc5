from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.processes.launching import started

from dstransformer.errors import DataError, StorageError, UserError
from dstransformer.io.files import (
    MAX_TRIES,
    Backlog,
    RetryPolicy,
    append_whole,
    hold_lock,
    replace_file,
    replace_folder,
    replacing,
    storage_errors,
)


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "bundle"

    def good(folder: Path) -> None:
        folder.mkdir()
        (folder / "file").write_text("new")

    def bad(folder: Path) -> None:
        good(folder)
        raise DataError("no")

    replace_folder(target, good)
    (target / "file").write_text("old")
    with pytest.raises(DataError):
        replace_folder(target, bad)
    assert (target / "file").read_text() == "old"
    replace_folder(target, good)
    assert (target / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize(("number", "advice"), [
    (errno.ENOSPC, "make room"), (errno.EDQUOT, "make room"), (errno.EACCES, "check the path and its permissions"),
    (errno.EFBIG, "raise `ulimit -f`, then run the same command"), (errno.EMFILE, "raise `ulimit -n`"),
])  # fmt: skip
def test_file_system_errors_are_reported_with_advice(tmp_path: Path, number: int, advice: str) -> None:
    with pytest.raises(StorageError, match=f"cannot write {tmp_path}: .*; {advice}"), storage_errors(tmp_path):
        raise OSError(number, "no")


def test_a_file_is_replaced_in_one_step_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    replace_file(path, "old")
    replace_file(path, b"new")
    assert path.read_text() == "new"

    def fail() -> None:
        with replacing(path) as aside:
            aside.write_text("half")
            raise DataError("no")

    with pytest.raises(DataError):
        fail()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


HOLDER = """
import sys, time
from pathlib import Path
from dstransformer.io.files import hold_lock
with hold_lock(Path(sys.argv[1]), "busy"):
    print("held", flush=True)
    time.sleep(3600)
"""


def test_a_lock_names_its_owner_and_ends_with_the_process(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    with started([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"held by process {holder.pid} "), hold_lock(lock, "held by {owner}"):
            pytest.fail("the block must not run")
        holder.kill()
        holder.wait()
    with hold_lock(lock, "busy", keep=True):
        assert str(os.getpid()) in lock.read_text()
    assert lock.exists()
    with hold_lock(lock, "busy"):
        pass
    assert not lock.exists()


def test_hold_lock_waits_for_the_lock(tmp_path: Path) -> None:
    lock, order = tmp_path / ".lock", []

    def wait() -> None:
        with hold_lock(lock, "busy", wait=600.0):
            order.append("second")

    with hold_lock(lock, "busy"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_causes_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    (tmp_path / ".lock").write_text("process 1 on another\n")  # as a killed run leaves it
    for _ in range(2):
        with hold_lock(tmp_path / ".lock", "busy", keep=True):
            pass
    assert [f"{tmp_path} cannot be locked" in message for message in caplog.messages] == [True, True]


def test_replace_folder_refuses_what_appeared_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    replace_folder(tmp_path / "out", lambda folder: write_letter(folder, "first"), overwrite=False)
    with pytest.raises(UserError, match=r"out .*--overwrite"):
        replace_folder(tmp_path / "out", lambda folder: write_letter(folder, "second"), overwrite=False)
    assert (tmp_path / "out" / "letter.txt").read_text() == "first"
    replace_folder(tmp_path / "out", lambda folder: write_letter(folder, "second"))
    assert (tmp_path / "out" / "letter.txt").read_text() == "second"
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_replace_folder_does_not_mix_two_writers(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        write_letter(folder, "first")
        with pytest.raises(UserError, match=rf"out \(process {os.getpid()} "):
            replace_folder(tmp_path / "out", lambda other: write_letter(other, "second"))

    replace_folder(tmp_path / "out", write)
    assert (tmp_path / "out" / "letter.txt").read_text() == "first"


def write_letter(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "letter.txt").write_text(text)


def test_replace_folder_writes_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for text in ("first", "second"):
        replace_folder(tmp_path / "link", lambda folder, text=text: write_letter(folder, text))
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real" / "letter.txt").read_text() == text


def test_replace_folder_keeps_what_a_killed_process_had_moved_aside(tmp_path: Path) -> None:
    write_letter(tmp_path / ".out.old", "first")
    with pytest.raises(UserError, match="out already exists"):
        replace_folder(tmp_path / "out", lambda folder: write_letter(folder, "second"), overwrite=False)
    assert (tmp_path / "out" / "letter.txt").read_text() == "first"


def test_text_is_appended_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_whole(path, "first ä\n")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12, limit[1]))  # room for part of it, as on a disk that gets full
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            append_whole(path, "second\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert caught.value.filename == str(path)
    append_whole(path, "third\n")
    assert path.read_text(encoding="utf-8") == "first ä\nthird\n"


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


def test_a_backlog_keeps_the_order_and_reports_once(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(3)
    backlog: Backlog[str] = Backlog(Path("metrics.jsonl"), disk.write)
    backlog.add("a")
    backlog.add("b")
    assert str(backlog.flush()) == "no room"
    assert (len(backlog), disk.written, len(caplog.records)) == (2, [], 1)
    assert "metrics.jsonl: no room" in caplog.text
    backlog.add("c")
    assert (len(backlog), disk.written, len(caplog.records)) == (0, ["a", "b", "c"], 2)
    assert backlog.flush() is None
    assert disk.written == ["a", "b", "c"]
