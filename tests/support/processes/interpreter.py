"""A process in which Triton interprets kernels on a CPU instead of compiling them for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import pytest


@contextmanager
def triton_interpreter() -> Iterator[Callable[..., Any]]:
    """Yield a function that calls another in that process; what it raises is raised here.

    It is a fresh process, because Triton decides when it is imported.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            process.submit(int).result()
        yield lambda function, *arguments: process.submit(function, *arguments).result()
