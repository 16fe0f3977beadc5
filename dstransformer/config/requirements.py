"""The versions of Python and of other packages that this package takes, as its own metadata state them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet


@cache
def supported_versions() -> dict[str, SpecifierSet]:
    """The supported versions by name, of ``python`` and each package; empty if this package is not installed."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    try:
        metadata = distribution("dstransformer")
    except PackageNotFoundError:
        return {}
    found = {"python": SpecifierSet(str(metadata.metadata["Requires-Python"] or ""))}
    for text in metadata.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None:  # not an extra
            found[requirement.name.lower()] = requirement.specifier
    return found
