"""Minimum Bayes risk against plain enumeration."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

from dstransformer.cli import main
from dstransformer.extras.rerank.minimum_bayes_risk import ExpectedUtility, Utility, Weighting
from dstransformer.extras.rerank.reranking import Candidate

WORDS = ["ein", "kleiner", "Hund", "läuft", "über", "die", "grüne", "Wiese", "und", "bellt", "laut"]


def candidate(text: str, log_probability: float = -1.0, line: int = 1) -> Candidate:
    fields: dict[str, Any] = {
        "line": line, "rank": 1, "source": "x", "text": text, "score": 0.0, "log_probability": log_probability,
        "tokens": len(text.split()),
    }  # fmt: skip
    return Candidate(line, "x", text, log_probability, len(text.split()), None, fields)


def draw_list(seed: int) -> list[Candidate]:
    """Hypotheses with changed and left-out words, some of them twice."""
    draw = random.Random(seed)
    texts = [" ".join(draw.choice(WORDS) if draw.random() < 0.3 else word for word in WORDS[: draw.randint(4, 11)])
             for _ in range(7)]  # fmt: skip
    return [candidate(text, draw.uniform(-9, -1)) for text in (*texts, texts[0], texts[3])]


@pytest.mark.parametrize("weighting", ["uniform", "model"])
@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_the_expected_utility_is_that_of_enumeration(utility: Utility, weighting: Weighting) -> None:
    function = sacrebleu.sentence_chrf if utility == "chrf" else sacrebleu.sentence_bleu
    for seed in range(5):
        group = draw_list(seed)
        weights = [math.exp(one.log_probability) if weighting == "model" else 1.0 for one in group]
        expected = []
        for hypothesis in group:
            gains = [function(hypothesis.text, [other.text]).score for other in group]
            expected.append(sum(w * gain for w, gain in zip(weights, gains, strict=True)) / sum(weights))
        found = ExpectedUtility(utility, weighting).scores(group)
        assert found == pytest.approx(expected)
        assert len({round(value, 9) for value in found}) > 3


def test_improbable_hypotheses_have_weights() -> None:
    group = [candidate("ein Hund", -2000.0), candidate("eine Katze", -2001.0)]
    first, second = ExpectedUtility("chrf", "model").scores(group)
    assert first > second > 0


def write(path: Path) -> str:
    texts = ["Das ist etwas ganz anderes.", "Ein Hund läuft.", "Ein Hund läuft weg.", "Der Hund läuft weg."]
    lists = [
        candidate(text, log_probability=-1.0 - rank, line=line) for line in (1, 3) for rank, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(one.fields, ensure_ascii=False) + "\n" for one in lists), encoding="utf-8")
    return str(path)


def test_the_command_takes_what_is_most_like_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nbest = write(tmp_path / "nbest.jsonl")
    assert main(["rerank", nbest, "--mbr", "chrf"]) == 0
    assert capsys.readouterr().out == "Ein Hund läuft weg.\n\nEin Hund läuft weg.\n"
    assert main(["rerank", nbest, "--mbr", "chrf", "--mbr-weights", "model"]) == 0
    assert capsys.readouterr().out.startswith("Das ist etwas ganz anderes.\n"), "it has nearly two thirds of the mass"
    assert main(["rerank", nbest, "--mbr", "bleu", "--format", "jsonl"]) == 0
    best = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (best["text"], best["rank"], best["first_score"]) == ("Ein Hund läuft weg.", 1, 0.0)


@pytest.mark.parametrize(("options", "complaint"), [
    (["--mbr", "chrf", "--reverse", "nowhere"], "--reverse is for --weights and --tune: --mbr uses no other model"),
    (["--weights", "1", "0", "0", "--mbr-weights", "model"], "--mbr-weights is for --mbr: add it"),
    (["--mbr", "chrf", "--json"], "--json is for --tune"),
    (["--mbr", "chrf", "--weights", "1", "0", "0"], "not allowed with argument --mbr"),
    (["--mbr", "ter"], "invalid choice: 'ter'"),
])  # fmt: skip
def test_slips_are_named(
    tmp_path: Path, options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nbest = write(tmp_path / "nbest.jsonl")
    try:
        status = main(["rerank", nbest, *options])
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status == 2
    assert complaint in capsys.readouterr().err


def test_text_is_no_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("Ein Hund.\n")
    assert main(["rerank", str(tmp_path / "text"), "--mbr", "chrf"]) == 2
    assert "is not a JSON object" in capsys.readouterr().err
