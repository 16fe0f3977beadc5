"""A stand-in for a model, which the tests of the process of a model load in it; importing it takes no time."""

from __future__ import annotations

import os
import time
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
    """Does what the batch says, if it is the name of an error, ``sleep``, or anything else to be sent back."""

    facts = ("facts", 1)
    ended = None

    def search(self, batch: Any) -> Any:
        if batch == "sleep":
            time.sleep(1e6)
        if batch in ERRORS:
            raise ERRORS[batch]
        return [batch]

    def attention(self, source: str, target: str) -> Any:
        return {"words": (source, target), "pid": os.getpid()}


def load_fake() -> FakeModel:
    return FakeModel()


def fail_to_load(name: str) -> NoReturn:
    """Raise one of the errors; end at once if it is ``exit``."""
    if name == "exit":
        os._exit(3)
    raise ERRORS[name]
