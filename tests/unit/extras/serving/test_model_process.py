from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from support.processes.launching import run_command
from support.services.fake import fail_to_load, load_fake

from dstransformer.errors import DataError, StorageError
from dstransformer.extras.serving.model_process import ModelEndedError, ModelProcess


@pytest.fixture
def model() -> Iterator[Any]:
    with closing(ModelProcess(load_fake)) as model:
        model.wait()
        yield model


def test_it_answers_from_another_process(model: Any) -> None:
    assert model.info == ("facts", 1)
    assert model.search("anything") == ["anything"]
    assert model.attention("a", "b") == {"words": ("a", "b"), "pid": model.pid}
    assert model.pid != os.getpid()
    assert model.ended is None


@pytest.mark.parametrize(("name", "kind", "message"), [
    ("data", DataError, "not this"),
    ("storage", StorageError, "full"),
    ("memory", MemoryError, ""),
    ("system", FileNotFoundError, "/nowhere"),
    ("bug", RuntimeError, "ZeroDivisionError: by nothing"),
])  # fmt: skip
def test_errors_keep_their_type_and_their_traceback(name: str, kind: type[Exception], message: str) -> None:
    with closing(ModelProcess(partial(fail_to_load, name))) as broken, pytest.raises(kind, match=message) as loading:
        broken.wait()
    assert "in fail_to_load" in str(loading.value.__cause__)
    with closing(ModelProcess(load_fake)) as model:
        model.wait()
        with pytest.raises(kind, match=message) as searching:
            model.search(name)
        assert "in search" in str(searching.value.__cause__)
        assert model.search("anything") == ["anything"], "it goes on"


def test_an_end_while_it_loads() -> None:
    message = "the process of the model ended with exit status 3"
    with (
        closing(ModelProcess(partial(fail_to_load, "exit"))) as model,
        pytest.raises(ModelEndedError, match=message),
    ):
        model.wait()


def test_an_end_while_it_searches(model: Any) -> None:
    os.kill(model.pid, signal.SIGSTOP)
    os.kill(model.pid, signal.SIGKILL)
    with pytest.raises(ModelEndedError, match="ended by SIGKILL"):
        model.search("anything")
    assert model.ended == "the process of the model was ended by SIGKILL (did memory run out?)"
    with pytest.raises(ModelEndedError, match="ended by SIGKILL"):
        model.attention("a", "b")


def test_the_server_itself_imports_no_torch() -> None:
    program = "import sys; from dstransformer.extras.serving import cli, server; print('torch' in sys.modules)"
    done = run_command([sys.executable, "-c", program])
    assert done.stdout == "False\n", done.stderr
