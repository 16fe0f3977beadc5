"""Table 3 as stored, as Markdown and as a picture: our figures beside the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dstransformer.extras.figures import COLOURS, label_of, new_figure, picture, style_axes
from dstransformer.extras.paper.table3_rows import COLUMNS, ROWS, Row
from dstransformer.io.json_text import read_record

FORMAT_VERSION = 1
PAPER_COLOUR, OUR_COLOUR = "#9c9c9c", COLOURS[0]


class RowResult(BaseModel):
    """The result of a row so far.

    Attributes:
        status: ``done``, ``interrupted`` or ``failed``.
        differences: The values of ``COLUMNS`` in which the row differs from base; all of them for base itself.
        parameters: Number of weights.
        seconds: Time of the training loop across all starts, without starting up and the final evaluation. Until the
            row is done, wall time of the starts that were not killed.
        updates: Updates computed.
        perplexity: On validation, per piece, without label smoothing.
        bleu: On validation; ``bleu_name`` tells whether only the first sentences count.
        bleu_name: Name of that score.
        signature: Its signature.
        test_bleu: On test, if the corpus has a test split.
        error: Why a row failed.
        ended: When it ended last, Unix seconds.
    """

    status: str
    differences: dict[str, Any]
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


class Table(BaseModel):
    """The state of an output folder.

    Attributes:
        settings: The settings of all rows; a second start must have the same.
        rows: The results of the rows started so far, by name.
        mlflow_run: The run in MLflow above those of the rows.
    """

    settings: dict[str, Any]
    rows: dict[str, RowResult]
    mlflow_run: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The content of ``table3.json``."""
        tree = {"format_version": FORMAT_VERSION, **self.model_dump()}
        for row in ROWS:
            if row.name in tree["rows"]:
                paper = {"perplexity": row.perplexity, "bleu": row.bleu, "parameters_millions": row.parameters}
                tree["rows"][row.name]["paper"] = paper
        return tree


def read_table(path: Path) -> Table:
    """Read ``table3.json``.

    Raises:
        DataError: The file cannot be read, is damaged, or a newer version wrote it.
    """
    advice = "restore it, or move it away and give the same command again, which keeps the trained rows"
    return read_record(path, Table.model_validate, newest=FORMAT_VERSION, nan=True, advice=advice)


def agreement(figures: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """How many pairs of rows have the same order by the paper's figure and ours, and how many the paper's order."""
    differing = [(first, second) for first, second in combinations(figures, 2) if first[0] != second[0]]
    matching = sum((first[0] - second[0]) * (first[1] - second[1]) > 0 for first, second in differing)
    return matching, len(differing)


def to_markdown(table: Table) -> str:
    """The whole table with its settings, and how far its order agrees with the paper's."""
    return "\n".join([*_heading(table), "", *_rows(table), "", *_notes(table)]) + "\n"


def _heading(table: Table) -> Iterator[str]:
    settings = table.settings
    yield f"# Table 3, scale {settings['scale']}"
    yield ""
    if settings["scale"] == "paper":
        yield "The rows of the paper's Table 3 as the paper describes them."
    else:
        yield "These are not the paper's models: each row changes a smaller base by the factors of the paper's row."
    pairs = ", ".join(f"{name} {count:,}" for name, count in settings["pairs"].items())
    yield (
        f"Corpus: {settings['languages']}, pairs: {pairs}; vocabulary {settings['vocab_size']:,}. "
        f"Updates of base: {settings['updates']:,}."
    )
    if settings["set"] or settings["ds"]:
        yield f"All rows: {' '.join(['--set', *settings['set']] if settings['set'] else [])} " + (
            " ".join(["--ds", *settings["ds"]]) if settings["ds"] else ""
        )
    yield "The paper's figures are for newstest2013 of WMT14 English-German, ours for the validation set."


def _rows(table: Table) -> Iterator[str]:
    names = [result.bleu_name for result in table.rows.values() if "_first_" in result.bleu_name]
    bleu = f"BLEU (first {names[0].rpartition('_')[2]})" if names else "BLEU"
    headings = ["row", *COLUMNS, "PPL", "paper", bleu, "paper", "params ×10⁶", "paper", "test BLEU", "time"]
    yield "| " + " | ".join(headings) + " |"
    yield "|---" * 2 + "|--:" * (len(headings) - 2) + "|"
    for row in ROWS:
        if (result := table.rows.get(row.name)) is not None:
            yield "| " + " | ".join(_cells(row, result)) + " |"


def _cells(row: Row, result: RowResult) -> Iterator[str]:
    yield _label(row)
    yield from (str(result.differences.get(heading, "")) for heading in COLUMNS)
    done = result.perplexity is not None and result.bleu is not None
    yield f"{result.perplexity:.2f}" if done else result.status
    yield f"{row.perplexity:.2f}"
    yield f"{result.bleu:.1f}" if done else ""
    yield f"{row.bleu:.1f}"
    yield f"{result.parameters / 1e6:.1f}"
    yield str(row.parameters or "")
    yield "" if result.test_bleu is None else f"{result.test_bleu:.1f}"
    yield _format_time(result.seconds)


def _label(row: Row) -> str:
    """``base``, or the group and what differs: ``(C) layers_2``."""
    return row.name if row.group in ("base", "big") else f"({row.group}) {row.name[2:]}"


def _format_time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _done(table: Table) -> list[tuple[Row, RowResult, float, float]]:
    """The finished rows, each with perplexity and BLEU."""
    found = [(row, table.rows[row.name]) for row in ROWS if row.name in table.rows]
    return [
        (row, result, result.perplexity, result.bleu)
        for row, result in found
        if result.perplexity is not None and result.bleu is not None
    ]


def _notes(table: Table) -> Iterator[str]:
    done = _done(table)
    if not done:
        return
    yield f"BLEU: sacrebleu {done[0][1].signature}. Perplexity is per piece, without label smoothing."
    yield f"Total time of the rows: {_format_time(sum(result.seconds for result in table.rows.values()))}."
    if len(done) < 2:
        return
    matching, pairs = agreement([(row.perplexity, ours) for row, _, ours, _ in done])
    by_bleu, bleu_pairs = agreement([(row.bleu, ours) for row, _, _, ours in done])
    yield ""
    yield (
        f"In the paper's order: {matching} of {pairs} pairs of rows by perplexity, {by_bleu} of {bleu_pairs} pairs of "
        "rows by BLEU."
    )
    base = next((entry for entry in done if entry[0].group == "base"), None)
    if base is None:
        return
    yield ""
    yield "Against base:"
    yield ""
    for row, _, ppl, score in done:
        if row.group != "base":
            yield f"- {row.name}: {_compare('perplexity', row.perplexity - base[0].perplexity, ppl - base[2], 2)}; " + (
                _compare("BLEU", row.bleu - base[0].bleu, score - base[3], 1)
            )


def _compare(name: str, paper: float, ours: float, digits: int) -> str:
    """``perplexity +0.37, like the paper (+0.29)``: whether both are better, both worse, or both equal."""
    paper, ours = round(paper, digits), round(ours, digits)
    relation = "like" if paper * ours > 0 or paper == ours == 0 else "not like"
    return f"{name} {ours:+.{digits}f}, {relation} the paper ({paper:+.{digits}f})"


def draw(table: Table) -> bytes:
    """Plot each row's distance from base, the paper's beside ours, as a PNG.

    Without ``base`` in the table the distances are from its first finished row.
    """
    done = _done(table)
    base = next((entry for entry in done if entry[0].group == "base"), done[0])
    figure = new_figure(11, 1.6 + 0.32 * len(done))
    figure.suptitle(f"Table 3, scale {label_of(table.settings['scale'])}: distance from {base[0].name}")
    left, right = figure.subplots(1, 2, sharey=True)
    positions = list(range(len(done)))
    panels = (
        (left, "perplexity, ratio (less is better)", [row.perplexity / base[0].perplexity for row, *_ in done],
         [ours / base[2] for _, _, ours, _ in done], 1.0),
        (right, "BLEU, difference (more is better)", [row.bleu - base[0].bleu for row, *_ in done],
         [ours - base[3] for *_, ours in done], 0.0),
    )  # fmt: skip
    for axes, label, paper, ours, origin in panels:
        axes.axvline(origin, color="black", linewidth=0.8, alpha=0.5)
        for position, *ends in zip(positions, paper, ours, strict=True):
            axes.plot(ends, [position, position], color=PAPER_COLOUR, linewidth=1, alpha=0.6)
        axes.plot(paper, positions, "D", color=PAPER_COLOUR, label="paper")
        axes.plot(ours, positions, "o", color=OUR_COLOUR, label="ours")
        style_axes(axes, label)
    left.set_yticks(positions, [_label(row) for row, *_ in done])
    left.invert_yaxis()
    right.legend(frameon=False)
    return picture(figure, ".png")
