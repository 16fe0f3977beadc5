"""Packages whose names take long to import, PyTorch seconds, so that a user's mistake is reported before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module


def loads_later(package: str, *modules: str) -> Callable[[str], object]:
    """The ``__getattr__`` of a package (PEP 562): the first use of a name of ``__all__`` loads ``modules``."""

    def load(name: str) -> object:
        names = vars(sys.modules[package])
        if name not in names["__all__"]:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        for module in modules:
            loaded = vars(import_module(f"{package}.{module}"))
            names.update({public: loaded[public] for public in names["__all__"] if public in loaded})
        return names[name]

    return load
