"""Colour for the few words that are to be found at a glance, where a terminal shows it."""

from __future__ import annotations

import os
import sys
from typing import TextIO

#: Codes of ECMA-48.
BOLD, RED, YELLOW = 1, 31, 33


def paint(text: str, code: int, stream: TextIO | None = None) -> str:
    """Colour a text for a stream, by default standard output. Where there is no colour, it stays as it is.

    A terminal has colour, unless ``NO_COLOR`` is set or ``TERM`` is ``dumb``. ``FORCE_COLOR`` gives it to every stream.
    """
    return f"\x1b[{code}m{text}\x1b[0m" if _has_colour(sys.stdout if stream is None else stream) else text


def _has_colour(stream: TextIO | None) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream is not None and stream.isatty())
