"""For the page of the Python API: roles of docstrings, such as :class:`str`, become code."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":[a-z]+:`~?([^`]+)`")


class Roles(griffe.Extension):
    """Rewrites each docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each object."""
        if obj.docstring:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value)
