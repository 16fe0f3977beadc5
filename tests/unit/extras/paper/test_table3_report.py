"""Table 3 as text, JSON and picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dstransformer.errors import DataError
from dstransformer.extras.paper.table3_report import RowResult, Table, agreement, draw, read_table, to_markdown

SETTINGS = {
    "scale": "small", "updates": 1500, "set": [], "ds": ["zero0", "fp32"], "languages": "en-de",
    "pairs": {"train": 29_000, "validation": 1_014}, "vocab_size": 4000, "corpus_digest": "0" * 32,
}  # fmt: skip


def result(perplexity: float, bleu: float, **values: object) -> RowResult:
    differences = values.pop("differences", {"N": 6})
    known = {"status": "done", "differences": differences, "parameters": 2_100_000, "seconds": 125.0, "updates": 1500}
    return RowResult.model_validate({**known, **values, "perplexity": perplexity, "bleu": bleu, "signature": "nrefs:1"})


TABLE = Table(
    settings=SETTINGS,
    rows={
        "c_layers_2": result(9.5, 21.0, differences={"N": 1}, test_bleu=20.5),
        "base": result(9.0, 20.0),
        "big": RowResult(status="failed", differences={"d_model": 256}, parameters=9_900_000, error="out of memory"),
    },
)


def test_agreement_counts_the_pairs_that_the_paper_orders() -> None:
    assert agreement([(1.0, 5.0), (2.0, 6.0), (2.0, 7.0), (3.0, 5.5)]) == (3, 5)
    assert agreement([(1.0, 5.0), (2.0, 5.0)]) == (0, 1)  # equal here, but not in the paper


def test_the_table_shows_our_figures_beside_the_papers_in_its_order() -> None:
    text = to_markdown(TABLE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    heading, _, base, layers, big = rows
    assert heading[-8:] == ["PPL", "paper", "BLEU", "paper", "params ×10⁶", "paper", "test BLEU", "time"]
    assert base[:2] == ["base", "6"]
    assert base[-8:] == ["9.00", "4.92", "20.0", "25.8", "2.1", "65", "", "2:05"]
    assert layers[:2] == ["(C) layers_2", "1"]
    assert layers[-8:] == ["9.50", "6.11", "21.0", "23.7", "2.1", "36", "20.5", "2:05"]
    assert big[-8:] == ["failed", "4.33", "", "26.4", "9.9", "213", "", "0:00"]
    assert "These are not the paper's models" in text
    assert "In the paper's order: 1 of 1 pairs of rows by perplexity, 0 of 1 pairs of rows by BLEU." in text
    assert "perplexity +0.50, like the paper (+1.19); BLEU +1.0, not like the paper (-2.1)" in text


def test_scores_on_the_first_sentences_are_labelled() -> None:
    table = Table(settings=SETTINGS, rows={"base": result(9.0, 20.0, bleu_name="bleu_first_100")})
    assert "| BLEU (first 100) |" in to_markdown(table)


def test_a_picture_is_drawn_of_finished_rows() -> None:
    assert draw(TABLE).startswith(b"\x89PNG")


def test_a_table_round_trips_through_json(tmp_path: Path) -> None:
    path = tmp_path / "table3.json"
    path.write_text(json.dumps(TABLE.to_json()))
    assert read_table(path) == TABLE
    assert json.loads(path.read_text())["rows"]["base"]["paper"] == {
        "perplexity": 4.92, "bleu": 25.8, "parameters_millions": 65
    }  # fmt: skip


DAMAGED = r"is damaged \(.*\): restore it, or move it away"


@pytest.mark.parametrize(("text", "message"), [
    ("[]", DAMAGED),
    ('{"format_version": 1, "settings": {}}', DAMAGED),
    ('{"format_version": 1, "settings": {}, "rows": {"base": {"status": "done"}}}', DAMAGED),
    ('{"format_version": 2, "settings": {}, "rows": {}}', "has format version 2, but .* up to 1"),
])  # fmt: skip
def test_a_damaged_or_newer_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "table3.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_table(path)
