from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.faults.disk import full_disk

from dstransformer.tracking.spool import METRICS_PER_BATCH, Record, Spool


def metrics(step: int, count: int = 1) -> Record:
    return {"op": "metrics", "metrics": [[f"m{index}", 1.0, 0, step] for index in range(count)]}


def operations(spool: Spool) -> list[str]:
    return [record["op"] for _, record in spool.batches(spool.pending())]


def test_records_outlive_the_process_and_keep_their_order(tmp_path: Path) -> None:
    Spool(tmp_path).put({"op": "start"})
    Spool(tmp_path).put({"op": "finish"})
    assert operations(Spool(tmp_path)) == ["start", "finish"]


def test_consecutive_metrics_are_batched(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for record in (metrics(1), metrics(2), {"op": "tags"}, metrics(3)):
        spool.put(record)
    batches = list(spool.batches(spool.pending()))
    assert [len(files) for files, _ in batches] == [2, 1, 1]
    assert [len(record.get("metrics", [])) for _, record in batches] == [2, 0, 1]


def test_a_batch_is_no_larger_than_mlflow_accepts(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for step in range(3):
        spool.put(metrics(step, METRICS_PER_BATCH // 2))
    sizes = [len(record["metrics"]) for _, record in spool.batches(spool.pending())]
    assert sizes == [METRICS_PER_BATCH, METRICS_PER_BATCH // 2]


def test_compacting_keeps_every_value_in_order_in_fewer_files(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put({"op": "start"})
    for step in range(50):
        spool.put(metrics(step))
    spool.put({"op": "finish"})
    spool.compact()
    assert len(spool.pending()) == 3
    assert operations(spool) == ["start", "metrics", "finish"]
    (joined,) = (record for _, record in spool.batches(spool.pending()) if record["op"] == "metrics")
    assert [value[3] for value in joined["metrics"]] == list(range(50))


def test_a_closed_spool_leaves_no_folder_unless_something_is_pending(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.close()
    spool.put({"op": "start"})
    spool.close()
    assert operations(spool) == ["start"]
    spool.delete(spool.pending())
    spool.close()
    assert list(tmp_path.iterdir()) == []
    spool.put({"op": "tags"})
    assert operations(spool) == ["tags"]


@pytest.mark.parametrize("content", [b"", b"[]", b"junk"])
def test_a_damaged_record_is_skipped_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    spool = Spool(tmp_path)
    spool.put({"op": "start"})
    spool.put({"op": "finish"})
    spool.pending()[0].write_bytes(content)
    assert operations(spool) == ["finish"]
    assert "is damaged" in caplog.text
    assert spool.damaged == len(list((tmp_path / "tracking-pending").glob("*.broken"))) > 0, "it is kept"


def test_requeued_records_come_before_pending_ones(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for record in ({"op": "start"}, metrics(1), {"op": "text"}):
        spool.put(record)
    for files, record in list(spool.batches(spool.pending())):
        spool.archive(files, record)
    assert spool.pending() == []
    spool.put(metrics(2))
    logged = [("m0", 1.0, 0, 1), ("m0", 1.0, 0, 2)]
    assert spool.requeue_sent(logged) == 3
    assert operations(spool) == ["start", "metrics", "text", "metrics"]
    sent = [value[3] for _, record in spool.batches(spool.pending()) for value in record.get("metrics", [])]
    assert sent == [1, 2]
    assert spool.requeue_sent(logged) == 0


def test_a_run_lacks_its_end_until_one_is_recorded(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    assert not spool.lacks_end()
    spool.put({"op": "start"})
    assert spool.lacks_end()
    for operation in ("metrics", "finish", "start", "crash", "text"):
        spool.put({"op": operation, "metrics": []})
    assert spool.operations() == ["start", "metrics", "finish", "start", "crash", "text"]
    assert not spool.lacks_end()
    for path in spool.pending():
        spool.archive([path], json.loads(path.read_text()))
    assert spool.operations() == ["start", "finish", "start", "crash", "text"]  # metrics are in metrics.jsonl
    spool.put({"op": "start"})
    (tmp_path / "tracking-pending" / "0-damaged.json").write_text('{"op"')
    assert spool.lacks_end()
    assert len(spool.pending()) == 2, "looking changes nothing"


def test_records_wait_in_memory_while_the_disk_is_full(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put_or_hold({"op": "start"})
    with full_disk():
        spool.put_or_hold(metrics(1))
        spool.put_or_hold({"op": "tags"})
        error = spool.write_held()
        assert error is not None
        assert spool.held == 2
        assert operations(spool) == ["start", "metrics", "tags"], "they can be sent from memory"
        assert operations(Spool(tmp_path)) == ["start"]
    spool.put_or_hold(metrics(2))
    assert (spool.held, spool.write_held()) == (0, None)
    assert operations(Spool(tmp_path)) == ["start", "metrics", "tags", "metrics"]


def test_records_sent_while_the_disk_is_full_are_logged_later(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put_or_hold({"op": "start"})
    with full_disk():
        spool.put_or_hold({"op": "tags"})
        spool.put_or_hold(metrics(1))
        for files, record in list(spool.batches(spool.pending())):
            spool.archive(files, record)
        assert spool.pending() == []
        assert operations(Spool(tmp_path)) == ["start"], "a process that is killed now leaves it to be sent again"
    assert spool.write_held() is None
    assert list((tmp_path / "tracking-pending").iterdir()) == []
    assert Spool(tmp_path).operations() == ["start", "tags"]


def test_compacting_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    for step in range(2500):
        spool.put(metrics(step))
    spool.compact()
    assert len(spool.pending()) == 3
    spool.put({"op": "tags"})
    spool.put(metrics(2500))
    spool.put(metrics(2501))
    read: list[Path] = []
    original = Spool._read
    monkeypatch.setattr(Spool, "_read", lambda self, path: read.append(path) or original(self, path))
    spool.compact()
    assert len(read) == 4, "the last batch, which could have grown, and the new ones"
    assert len(spool.pending()) == 5
    steps = [value[3] for _, record in spool.batches(spool.pending()) for value in record.get("metrics", [])]
    assert steps == list(range(2502))


def test_records_wait_for_a_disk_that_is_not_mounted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(FileNotFoundError):
        Spool(run).put({"op": "start"})
    spool = Spool(run)
    spool.put_or_hold({"op": "start"})
    assert spool.held == 1
    assert not run.exists()
    run.mkdir()
    assert spool.write_held() is None
    assert operations(spool) == ["start"]
