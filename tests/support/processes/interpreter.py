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
            process.submit(_repair_products).result()
        yield lambda function, *arguments: process.submit(function, *arguments).result()


def _repair_products() -> None:
    """Have the interpreter multiply numbers in bf16; it multiplies their bits as if they were integers."""
    from triton import language
    from triton.runtime.interpreter import InterpreterBuilder

    multiply = InterpreterBuilder.create_dot

    def multiply_in_fp32(builder: Any, a: Any, b: Any, *others: Any) -> Any:
        return multiply(builder, *(builder.cast_impl(factor, language.float32) for factor in (a, b)), *others)

    InterpreterBuilder.create_dot = multiply_in_fp32
