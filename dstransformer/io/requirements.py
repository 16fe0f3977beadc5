"""What this package needs: the versions of Python and of other packages, and its extras, as its metadata state them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from dstransformer.errors import UserError

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

#: The project on a package index.
PROJECT = "dstransformer"

#: The project's name of a module, where it is another than the module's own.
_PROJECTS = {"mecab": "mecab-python3", "openssl": "pyopenssl", "pynvml": "nvidia-ml-py"}


@cache
def supported_versions() -> dict[str, SpecifierSet]:
    """The supported versions by name, of ``python`` and each package; empty if this package is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    from packaging.specifiers import SpecifierSet

    try:
        python = distribution(PROJECT).metadata["Requires-Python"]
    except PackageNotFoundError:
        return {}
    packages = {requirement.name.lower(): requirement.specifier for requirement, _ in _requirements()}
    return {"python": SpecifierSet(str(python or "")), **packages}


def how_to_install(module: str) -> str | None:
    """What to say of a module that is missing: the package, and the command that installs it with its extra.

    ``module`` names a module, such as ``deepspeed.comm``, or a project. Returns None if no extra has it.
    """
    top = module.partition(".")[0]
    name = _normal(_PROJECTS.get(top.lower(), top))
    members: dict[str, list[str]] = {}
    for requirement, extra in _requirements():
        members.setdefault(extra, []).append(_normal(requirement.name))
    extras = [extra for extra, names in members.items() if extra and name in names]
    if not extras:
        return None
    smallest = min(extras, key=lambda extra: len(members[extra]))
    return f"{name} is not installed: pip install '{PROJECT}[{smallest}]'"


def check_installed(*modules: str) -> None:
    """Check that modules which only an extra brings are there, without importing them.

    Raises:
        UserError: One is missing.
    """
    from importlib.util import find_spec

    for module in modules:
        if find_spec(module) is None:
            raise UserError(how_to_install(module) or f"{module} is not installed: pip install {module}")


def installed_extras() -> dict[str, bool]:
    """Whether all packages of an extra are installed, in versions that it takes, by the name of the extra."""
    from importlib.metadata import PackageNotFoundError, version

    installed: dict[str, bool] = {}
    for requirement, extra in _requirements():
        try:
            fits = requirement.specifier.contains(version(requirement.name), prereleases=True)
        except PackageNotFoundError:
            fits = False
        installed[extra] = installed.get(extra, True) and fits
    installed.pop("", None)
    return installed


def _requirements() -> Iterator[tuple[Requirement, str]]:
    """What this package needs, and the extra that needs it, "" for all; nothing if it is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    from packaging.requirements import Requirement

    try:
        texts = distribution(PROJECT).requires or ()
    except PackageNotFoundError:
        return
    for text in texts:
        requirement = Requirement(text)
        extra = re.search(r"""extra == ["']([^"']+)""", str(requirement.marker or ""))
        if requirement.name != PROJECT:  # an extra of extras
            yield requirement, extra[1] if extra else ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
