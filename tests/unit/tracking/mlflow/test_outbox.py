from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from support.faults.disk import full_disk

from dstransformer.errors import DataError
from dstransformer.tracking.mlflow.outbox import (
    CURSOR_NAME,
    FORMAT_VERSION,
    METRICS_PER_BATCH,
    OUTBOX_NAME,
    Outbox,
    Record,
)
from dstransformer.tracking.mlflow.tracked_run import lacks_end, last_record_time


def metrics(step: int, count: int = 1) -> Record:
    return {"op": "metrics", "metrics": [[f"m{index}", 1.0, 0, step] for index in range(count)]}


def put(outbox: Outbox, *records: Record) -> None:
    for record in records:
        outbox.put(record)


def send(outbox: Outbox, *, refuse: str = "", retry_refused: bool = True) -> list[str]:
    """Send everything to a store that refuses one operation. Returns the operations of all batches."""
    tried = []
    for batch in outbox.batches(retry_refused=retry_refused):
        tried.append(batch.record["op"])
        if batch.record["op"] == refuse:
            outbox.mark(batch, accepted=False)
        else:
            outbox.mark(batch, accepted=True)
    return tried


def operations(outbox: Outbox) -> list[str]:
    return [record["op"] for record in outbox.records()]


def steps(outbox: Outbox) -> list[int]:
    return [value[3] for batch in outbox.batches() for value in batch.record.get("metrics", [])]


def test_records_outlive_the_process_and_keep_their_order(tmp_path: Path) -> None:
    Outbox(tmp_path).put({"op": "start"})
    Outbox(tmp_path).put({"op": "finish"})
    assert Outbox(tmp_path).pending() == 2
    assert send(Outbox(tmp_path)) == ["start", "finish"]
    assert Outbox(tmp_path).pending() == 0
    assert not Outbox(tmp_path).has_pending()


def test_consecutive_metrics_are_batched(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    put(outbox, metrics(1), metrics(2), {"op": "tags"}, metrics(3))
    batches = list(outbox.batches())
    assert [len(batch.offsets) for batch in batches] == [2, 1, 1]
    assert [len(batch.record.get("metrics", [])) for batch in batches] == [2, 0, 1]


def test_a_batch_is_no_larger_than_mlflow_accepts(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    put(outbox, *(metrics(step, METRICS_PER_BATCH // 2) for step in range(3)))
    sizes = [len(batch.record["metrics"]) for batch in outbox.batches()]
    assert sizes == [METRICS_PER_BATCH, METRICS_PER_BATCH // 2]


def test_a_refused_record_stays_pending_and_later_ones_are_sent(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    put(outbox, {"op": "start"}, {"op": "bundle"}, metrics(1))
    assert send(outbox, refuse="bundle") == ["start", "bundle", "metrics"]
    assert (outbox.pending(), outbox.refused, Outbox(tmp_path).refused) == (1, 1, 1)
    outbox.put({"op": "finish"})
    assert send(outbox, retry_refused=False) == ["finish"]
    assert send(Outbox(tmp_path)) == ["bundle"]
    assert Outbox(tmp_path).pending() == 0


@pytest.mark.parametrize("content", [b"", b"[]", b"junk", b'{"op": 3}', b'{"op": "metrics", "metrics": [1]}'])
def test_a_damaged_line_is_skipped_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    outbox = Outbox(tmp_path)
    put(outbox, {"op": "start"}, {"op": "tags"}, {"op": "finish"})
    lines = (tmp_path / OUTBOX_NAME).read_bytes().splitlines()
    lines[2] = content
    (tmp_path / OUTBOX_NAME).write_bytes(b"".join(line + b"\n" for line in lines))
    assert send(outbox) == ["start", "finish"]
    assert caplog.text.count("is damaged at byte") == 1
    assert outbox.count_damaged() == 1, "it is kept"
    assert send(outbox) == []


def test_a_line_that_a_crash_cut_off_was_never_a_record(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    outbox.put({"op": "start"})
    whole = (tmp_path / OUTBOX_NAME).read_bytes()
    with (tmp_path / OUTBOX_NAME).open("ab") as file:
        file.write(b'{"op": "fin' + b"x" * 70_000)
    assert operations(Outbox(tmp_path)) == ["start"]
    assert send(outbox) == ["start"]
    put(Outbox(tmp_path), {"op": "tags"}, metrics(1))
    assert (tmp_path / OUTBOX_NAME).read_bytes().startswith(whole + b'{"op": "tags"}\n')
    assert send(outbox) == ["tags", "metrics"]
    assert outbox.count_damaged() == 0


@pytest.mark.parametrize(
    "cursor",
    ["", "{", "[]", '{"offset": 1}', '{"offset": "1", "refused": []}', '{"offset": 5, "refused": []}',
     '{"offset": 10000000, "refused": []}', '{"offset": -3, "refused": []}', '{"offset": 1.5, "refused": []}',
     '{"offset": 0, "refused": [7]}', '{"offset": 0, "refused": 3}'],
)  # fmt: skip
def test_a_damaged_cursor_counts_as_none(tmp_path: Path, cursor: str) -> None:
    put(Outbox(tmp_path), {"op": "start"}, {"op": "finish"})
    send(Outbox(tmp_path))
    (tmp_path / CURSOR_NAME).write_text(cursor)
    assert send(Outbox(tmp_path)) == ["start", "finish"]


def test_a_power_failure_that_takes_the_end_of_the_outbox_loses_no_later_record(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    put(outbox, {"op": "start"}, {"op": "tags"})
    begin = (tmp_path / OUTBOX_NAME).stat().st_size
    outbox.put(metrics(1))
    send(outbox)
    with (tmp_path / OUTBOX_NAME).open("ab") as file:
        file.truncate(begin)
    after = Outbox(tmp_path)
    assert after.pending() == 2
    after.put({"op": "finish"})
    assert send(after) == ["start", "tags", "finish"]


def test_a_store_that_lost_the_run_gets_all_records_in_order(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    assert outbox.rewind() == 0
    put(outbox, {"op": "start"}, metrics(1), {"op": "text"})
    assert outbox.rewind() == 0
    send(outbox)
    outbox.put(metrics(2))
    assert outbox.rewind() == 3
    assert outbox.pending() == 4
    assert steps(Outbox(tmp_path)) == [1, 2]
    assert send(outbox) == ["start", "metrics", "text", "metrics"]


def test_a_run_lacks_its_end_until_one_is_recorded(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    assert not lacks_end(outbox)
    outbox.put({"op": "start"})
    assert lacks_end(outbox)
    put(outbox, metrics(1), *({"op": operation} for operation in ("finish", "start", "crash", "text")))
    assert operations(outbox) == ["start", "metrics", "finish", "start", "crash", "text"]
    assert not lacks_end(outbox)
    send(outbox)
    assert not lacks_end(Outbox(tmp_path))
    outbox.put({"op": "start"})
    with (tmp_path / OUTBOX_NAME).open("ab") as file:
        file.write(b'{"op"\n')
    before = (tmp_path / OUTBOX_NAME).read_bytes()
    assert lacks_end(Outbox(tmp_path))
    assert (tmp_path / OUTBOX_NAME).read_bytes() == before, "looking changes nothing"


def test_the_last_report_of_a_run_is_not_its_evaluation(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    assert last_record_time(outbox) == 0
    put(outbox, {"op": "start", "time": 50}, {"op": "metrics", "metrics": [["m", 1.0, 70, 1]]}, {"op": "text"})
    put(outbox, {"op": "evaluation", "time": 900})
    assert last_record_time(outbox) == 70


def test_records_wait_in_memory_while_the_disk_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outbox = Outbox(tmp_path)
    outbox.put_or_hold({"op": "start"})
    with full_disk():
        outbox.put_or_hold(metrics(1))
        outbox.put_or_hold({"op": "tags"})
        outbox.flush()
        assert (outbox.held, outbox.pending()) == (2, 3)
        assert [batch.record["op"] for batch in outbox.batches()] == ["start", "metrics", "tags"], "sent from memory"
        assert operations(Outbox(tmp_path)) == ["start"]
    outbox.put_or_hold(metrics(2))
    assert outbox.held == 0
    assert send(Outbox(tmp_path)) == ["start", "metrics", "tags", "metrics"]
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot write {tmp_path / OUTBOX_NAME}: File too large; training continues, and its lines wait for the disk",
        f"{tmp_path / OUTBOX_NAME} is written again, with the lines that waited",
    ]


def test_records_sent_while_the_disk_is_full_are_written_later(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    outbox.put_or_hold({"op": "start"})
    with full_disk():
        outbox.put_or_hold({"op": "bundle"})
        outbox.put_or_hold(metrics(1))
        assert send(outbox, refuse="bundle") == ["start", "bundle", "metrics"]
        assert send(outbox) == []
        assert outbox.held == 1, "the refused one"
        assert send(Outbox(tmp_path)) == ["start"], "after a crash it is sent again: the cursor could not be written"
    outbox.flush()
    assert outbox.held == 0
    assert send(outbox) == ["bundle", "metrics"], "a store that is sent a record twice is as before"
    assert operations(Outbox(tmp_path)) == ["start", "bundle", "metrics"]


def test_records_wait_for_a_disk_that_is_not_mounted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(FileNotFoundError):
        Outbox(run).put({"op": "start"})
    outbox = Outbox(run)
    outbox.put_or_hold({"op": "start"})
    assert outbox.held == 1
    assert not run.exists()
    run.mkdir()
    outbox.flush()
    assert outbox.held == 0
    aside = run.rename(tmp_path / "aside")
    run.mkdir()  # the empty folder below a disk that is gone
    outbox.put_or_hold({"op": "tags"})
    assert list(run.iterdir()) == [], "no outbox is begun where the disk was"
    run.rmdir()
    aside.rename(run)
    outbox.put_or_hold({"op": "finish"})
    assert operations(Outbox(run)) == ["start", "tags", "finish"]


def append(folder: Path, name: str) -> None:
    outbox = Outbox(folder)
    for number in range(100):
        outbox.put({"op": name, "number": number, "text": "x" * number})


def test_processes_append_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=append, args=(tmp_path, name)) for name in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    for name in "abc":
        assert [record["number"] for record in Outbox(tmp_path).records(name)] == list(range(100))
    assert Outbox(tmp_path).count_damaged() == 0
    assert (tmp_path / OUTBOX_NAME).read_text().count('"op": "outbox"') == 1


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    put(Outbox(tmp_path), {"op": "start"})
    send(Outbox(tmp_path))
    text = (tmp_path / OUTBOX_NAME).read_text()
    (tmp_path / OUTBOX_NAME).write_text(text.replace(f'"format_version": {FORMAT_VERSION}', '"format_version": 9'))
    for use in (Outbox.pending, operations, lambda outbox: outbox.put_or_hold({"op": "tags"})):
        with pytest.raises(DataError, match=r"tracking-outbox\.jsonl .*9"):
            use(Outbox(tmp_path))


def test_a_new_run_starts_with_an_empty_outbox(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    put(outbox, {"op": "old"})
    outbox.mark(next(outbox.batches()), accepted=True)
    outbox.clear()
    put(outbox, {"op": "start"})
    outbox.clear()
    assert list(tmp_path.iterdir()) == []
    put(outbox, {"op": "start"}, {"op": "tags"})
    assert send(Outbox(tmp_path)) == ["start", "tags"]
