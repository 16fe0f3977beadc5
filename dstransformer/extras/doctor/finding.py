"""What a check found, and how a terminal shows it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dstransformer.errors import shown

#: ``note``: to be known, but nothing fails because of it. ``FAULT``: something fails, or has failed.
Level = Literal["ok", "note", "FAULT"]

_NAME_WIDTH = 13
_LIMIT = 600


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        name: What was checked, in a word or two.
        text: What was found.
        level: How bad it is.
        advice: What to do; empty if nothing, or if the text says it.
    """

    name: str
    text: str
    level: Level = "ok"
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """The finding as ``--json`` prints it."""
        return {"name": self.name, "level": self.level, "text": self.text, "advice": self.advice}


def collect(*checks: tuple[str, Callable[[], Finding | Iterable[Finding]]]) -> list[Finding]:
    """Run checks, given with their names, which return one finding or several. A check that fails itself is one too."""
    findings: list[Finding] = []
    for name, check in checks:
        try:
            result = check()
            findings += [result] if isinstance(result, Finding) else result
        except Exception as error:
            text = f"the check itself failed: {type(error).__name__}: {error}"
            findings.append(Finding(name, text, "FAULT", "please report it"))
    return findings


def describe(findings: Sequence[Finding], width: int | None) -> str:
    """One line for each finding; on a terminal of ``width`` columns, longer lines continue below their text."""
    lines = []
    for finding in findings:
        text = f"{finding.text}: {finding.advice}" if finding.advice else finding.text
        line = f"{finding.level:<5}  {finding.name:<{_NAME_WIDTH}}  {shown(text, quote=False, limit=_LIMIT)}"
        if width is not None:
            line = textwrap.fill(
                line, max(width, 40), subsequent_indent=" " * (9 + _NAME_WIDTH), break_long_words=False,
                break_on_hyphens=False,
            )  # fmt: skip
        lines.append(line)
    return "\n".join(lines)
