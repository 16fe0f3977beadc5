"""A fake model for tests of the process that holds a model. Importing this module takes no time."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from dstransformer.errors import DataError, StorageError

ERRORS: dict[str, Exception] = {
    "data": DataError("not this"),
    "storage": StorageError("full"),
    "memory": MemoryError(),
    "system": FileNotFoundError(2, "No such file or directory", "/nowhere"),
    "bug": ZeroDivisionError("by nothing"),
}


class FakeModel:
    """Raises the error that a batch names, and returns any other batch."""

    info = ("facts", 1)
    ended = None

    def search(self, batch: Any) -> Any:
        if batch in ERRORS:
            raise ERRORS[batch]
        return [batch]

    def attention(self, source: str, target: str) -> Any:
        return {"words": (source, target), "pid": os.getpid()}


def load_fake() -> FakeModel:
    return FakeModel()


def fail_to_load(name: str) -> NoReturn:
    """Raise the named error, or end the process at once if the name is ``exit``."""
    if name == "exit":
        os._exit(3)
    raise ERRORS[name]
