"""The results of Table 3 as they are stored: ``table3.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dstransformer.io.json_text import read_record
from dstransformer.paper.table3_rows import ROWS

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Result:
    """What is known of a row.

    Attributes:
        status: ``done``, ``interrupted`` or ``failed``.
        differences: The values of ``COLUMNS`` in which the row differs from base; all of them for base itself.
        parameters: Number of weights.
        seconds: Time of the training loop across all starts, without starting up and the final evaluation. Until the
            row is done, wall time of the starts that ended in an orderly way.
        updates: Updates computed.
        perplexity: On validation, per piece, without label smoothing.
        bleu: On validation; its name says if only the first sentences count.
        bleu_name: Name of that score.
        signature: Its signature.
        test_bleu: On test, if the corpus has a test split.
        error: Why a row failed.
        ended: When it ended last, Unix seconds.
    """

    status: str
    differences: Mapping[str, Any]
    parameters: int
    seconds: float = 0.0
    updates: int = 0
    perplexity: float | None = None
    bleu: float | None = None
    bleu_name: str = "bleu"
    signature: str = ""
    test_bleu: float | None = None
    error: str = ""
    ended: float = 0.0


@dataclass(frozen=True)
class Table:
    """The state of an output folder.

    Attributes:
        settings: What all rows have in common; a second start must have the same.
        results: The rows started so far, by name.
    """

    settings: Mapping[str, Any]
    results: Mapping[str, Result]

    def to_json(self) -> dict[str, Any]:
        """The content of ``table3.json``."""
        paper = {
            row.name: {"perplexity": row.perplexity, "bleu": row.bleu, "parameters_millions": row.parameters}
            for row in ROWS
        }
        return {
            "format_version": FORMAT_VERSION,
            "settings": dict(self.settings),
            "rows": {name: {**asdict(result), "paper": paper[name]} for name, result in self.results.items()},
        }


def read_table(path: Path) -> Table:
    """Read ``table3.json``.

    Raises:
        DataError: The file cannot be read, is damaged, or a newer version wrote it.
    """
    names = {field.name for field in fields(Result)}

    def build(tree: dict[str, Any]) -> Table:
        results = {
            row: Result(**{name: value for name, value in stored.items() if name in names})
            for row, stored in tree["rows"].items()
        }
        return Table(dict(tree["settings"]), results)

    advice = "restore it, or move it away and give the same command again, which keeps the trained rows"
    return read_record(path, build, newest=FORMAT_VERSION, nan=True, advice=advice)
