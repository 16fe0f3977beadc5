"""Tasks in several processes: their order, their failures, and that none is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psutil
import pytest

from data_prep.workers import list_results, run_tasks
from dstransformer.errors import DataError, DstError

TASKS = range(20)


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def killed_at_7(number: int) -> int:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuses_7(number: int) -> int:
    if number == 7:
        raise DataError("task 7")
    return number


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_the_order_of_the_tasks(workers: int) -> None:
    results = list_results(square, TASKS, workers)
    assert [result for result, _ in results] == [number * number for number in TASKS]
    assert ({process for _, process in results} == {os.getpid()}) is (workers == 1)


def children() -> set[psutil.Process]:
    return set(psutil.Process().children())


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [(killed_at_7, DstError, "a worker process was killed"), (refuses_7, DataError, "task 7")],
)
def test_a_failing_worker_ends_the_work(function: Callable[[int], int], error: type[DstError], message: str) -> None:
    others = children()
    with pytest.raises(error, match=message):
        list_results(function, TASKS, 2)
    assert children() == others


def test_leaving_early_leaves_no_process_behind() -> None:
    others = children()
    with run_tasks(square, TASKS, 2) as results:
        assert next(results)[0] == 0
        assert len(children() - others) == 2
    assert children() == others
