"""Files of pairs, and functions run over them in several processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from data_prep.pairs import SCHEMA, PairsWriter, count_pairs, iter_pairs, map_pairs
from dstransformer.errors import DataError, DstError
from dstransformer.progress import LineProgress

ROWS = 9_000


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.arrow"
    with PairsWriter(path) as writer:
        writer.write(pa.table([list(map(str, range(ROWS))), [""] * ROWS, [0] * ROWS, [False] * ROWS], schema=SCHEMA))
    return path


def odd_rows(table: pa.Table, offset: int) -> pa.Table:
    numbers = [int(text) + offset for text in table["src"].to_pylist() if int(text) % 2]
    return pa.table({"number": numbers, "process": [os.getpid()] * len(numbers)})


def killed_at_5000(table: pa.Table) -> pa.Table:
    if "5000" in table["src"].to_pylist():
        os.kill(os.getpid(), signal.SIGKILL)
    return table


def refuses_5000(table: pa.Table) -> pa.Table:
    if "5000" in table["src"].to_pylist():
        raise DataError("row 5000")
    return table


def test_a_large_table_is_read_in_small_batches(pairs: Path) -> None:
    batches = list(iter_pairs(pairs))
    assert max(batch.num_rows for batch in batches) <= 2000
    assert [text for batch in batches for text in batch["src"].to_pylist()] == list(map(str, range(ROWS)))
    assert count_pairs(pairs) == ROWS


@pytest.mark.parametrize("workers", [1, 3])
def test_tables_come_in_the_order_of_the_file(pairs: Path, workers: int) -> None:
    counted: list[int] = []
    result = pa.concat_tables(map_pairs(pairs, odd_rows, workers, counted.append, offset=10))
    assert result["number"].to_pylist() == list(range(11, ROWS + 10, 2))
    assert sum(counted) == ROWS
    assert (set(result["process"].to_pylist()) == {os.getpid()}) is (workers == 1)


def children() -> set[psutil.Process]:
    return set(psutil.Process().children())


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [(killed_at_5000, DstError, "a worker process was killed"), (refuses_5000, DataError, "row 5000")],
)
def test_a_failing_worker_ends_the_work(pairs: Path, function: object, error: type[DstError], message: str) -> None:
    others = children()
    with LineProgress().task("map") as advance, pytest.raises(error, match=message):
        list(map_pairs(pairs, function, 2, advance))
    assert children() == others


def test_closing_early_leaves_no_process_behind(pairs: Path) -> None:
    others = children()
    tables = map_pairs(pairs, odd_rows, 2, list[int]().append, offset=0)
    assert next(tables)["number"][0].as_py() == 1
    assert len(children() - others) == 2
    tables.close()
    assert children() == others
