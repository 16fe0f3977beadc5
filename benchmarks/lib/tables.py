"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def format_table(columns: str, rows: Iterable[str]) -> str:
    """A table whose columns and cells are separated by `` | ``.

    Args:
        columns: The names of the columns; one that ends with a colon is aligned to the right, without the colon.
        rows: The cells of each row.
    """
    names = columns.split(" | ")
    rule = "|".join("--:" if name.endswith(":") else "---" for name in names)
    head = " | ".join(name.removesuffix(":") for name in names)
    return "\n".join([f"| {head} |", f"|{rule}|", *(f"| {row} |" for row in rows)])
