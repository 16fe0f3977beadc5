"""The best hypothesis of each n-best list by its reference."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from sacrebleu.metrics.chrf import CHRF

from dstransformer.cli import main

REFERENCES = ["Ein Hund läuft über die Wiese.", "Fehlt.", "Die Frau liest ein Buch."]


def write(path: Path, lists: dict[int, list[str]]) -> str:
    rows = [
        {"line": line, "source": f"source {line}", "text": text, "log_probability": -1.0 - rank, "tokens": 3}
        for line, texts in lists.items()
        for rank, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def references(tmp_path: Path) -> str:
    (tmp_path / "ref").write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    return str(tmp_path / "ref")


def test_the_text_nearest_to_the_reference_is_chosen(tmp_path: Path, references: str) -> None:
    near, far = "Ein Hund läuft auf der Wiese.", "Eine Katze schläft."
    nbest = write(tmp_path / "n", {1: [far, near, far], 3: ["Die Frau liest.", "Die Frau liest ein Buch."]})
    assert main(["rerank", nbest, "--oracle", references, "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text(encoding="utf-8") == f"{near}\n\nDie Frau liest ein Buch.\n"


def test_it_is_the_maximum_over_all_hypotheses_and_the_first_of_equals(tmp_path: Path) -> None:
    draw = random.Random(3)
    words = ["der", "die", "das", "Hund", "Katze", "sieht", "läuft", "Buch", "alt"]
    lists = {line: [" ".join(draw.choices(words, k=5)) for _ in range(6)] for line in range(1, 21)}
    references = [" ".join(draw.choices(words, k=5)) for _ in lists]
    (tmp_path / "ref").write_text("\n".join(references) + "\n", encoding="utf-8")
    nbest = write(tmp_path / "n", {line: texts + texts for line, texts in lists.items()})
    assert main(["rerank", nbest, "--oracle", str(tmp_path / "ref"), "--output", str(tmp_path / "out")]) == 0
    metric = CHRF()
    for texts, reference, chosen in zip(
        lists.values(), references, (tmp_path / "out").read_text(encoding="utf-8").splitlines(), strict=True
    ):
        best = max(metric.sentence_score(text, [reference]).score for text in texts)
        assert chosen == next(t for t in texts if metric.sentence_score(t, [reference]).score == best)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({1: ["a"], 4: ["b"]}, "ref has 3 lines but the n-best list goes on to source line 4"),
        ({1: ["a"], 2: ["b"]}, "ref has 3 lines but the n-best list ends at source line 2"),
    ],
)
def test_references_of_another_text_are_refused(
    tmp_path: Path, references: str, lists: dict[int, list[str]], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nbest = write(tmp_path / "n", lists)
    assert main(["rerank", nbest, "--oracle", references, "--output", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", [["--json"], ["--format", "jsonl"], ["--reverse", "bundle"]])
def test_options_without_an_effect_are_refused(
    tmp_path: Path, references: str, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    nbest = write(tmp_path / "n", {1: ["a"], 2: ["b"], 3: ["c"]})
    assert main(["rerank", nbest, "--oracle", references, *option]) == 2
    assert f"{' '.join(option).removesuffix(' bundle')} does not go with --oracle" in capsys.readouterr().err
