"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def format_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table. Columns whose name ends with a colon are aligned to the right, without the colon; short rows are filled.

    Args:
        columns: The names of the columns.
        rows: The cells of each row.
    """
    lines = [_line([name.removesuffix(":") for name in columns])]
    lines.append("|" + "|".join("--:" if name.endswith(":") else "---" for name in columns) + "|")
    lines += [_line([*row, *[""] * (len(columns) - len(row))]) for row in rows]
    return "\n".join(lines)


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
