"""Guided alignment trains the same on two ranks at every ZeRO stage, and after a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.data.prep import ENGLISH, GERMAN, build, sentence
from support.processes.ranks import run_ranks

WORKER = Path(__file__).with_name("worker.py")
PAIRS = 400
COMMON = ["training.max_updates=12", "checkpoint.every_updates=6", "checkpoint.keep_last=9", "model.num_layers=2"]
COMMON += ["schedule.warmup_steps=4"]
UNGUIDED = [*COMMON, "training.bpe_dropout=0.1"]
GUIDED = [*UNGUIDED, "loss.guided_alignment=0.5"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every third pair has no links; the words of the others are linked in reverse order."""
    folder = tmp_path_factory.mktemp("aligned")
    options = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--vocab-size", "330"]
    for flag, numbers in (("", range(PAIRS)), ("valid-", range(PAIRS, PAIRS + 20))):
        for side, words in (("src", ENGLISH), ("tgt", GERMAN)):
            path = folder / f"{flag}{side}"
            path.write_text("".join(sentence(number, words) + "\n" for number in numbers))
            options += [f"--{flag}{side}", str(path)]
    links = "0-4 1-3 2-2 3-1 4-0"
    (folder / "align").write_text("".join(("" if number % 3 == 0 else links) + "\n" for number in range(PAIRS)))
    assert build(*options, "--alignments", folder / "align", "--out", folder / "corpus") == 0
    return folder / "corpus"


def records(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"]


def test_ranks_stages_and_resumes_compute_the_same(corpus: Path, tmp_path: Path) -> None:
    cases = [
        {"name": f"zero{stage}", "overrides": GUIDED, "fragments": [f"zero{stage}", "fp32"]} for stage in (0, 1, 3)
    ]
    cases.append({**cases[1], "name": "resumed", "resume": "zero1/checkpoints/step-00000006"})
    cases.append({"name": "bf16", "overrides": GUIDED, "fragments": ["zero3", "bf16"]})
    cases.append({"name": "plain", "overrides": UNGUIDED, "fragments": ["zero1", "fp32"], "final": False})
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    done = run_ranks(2, str(WORKER), str(tmp_path / "cases.json"), str(corpus), str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    whole = records(tmp_path / "zero1")
    losses = [line["alignment_loss"] for line in whole]
    for other in ("zero0", "zero3"):
        for name in ("loss", "alignment_loss"):
            found = [line[name] for line in records(tmp_path / other)]
            assert found == pytest.approx([line[name] for line in whole], rel=1e-4)
    resumed = records(tmp_path / "resumed")
    assert [(line["loss"], line["alignment_loss"]) for line in resumed] == [
        (line["loss"], line["alignment_loss"]) for line in whole[6:]
    ]
    assert records(tmp_path / "bf16")[-1]["alignment_loss"] == pytest.approx(losses[-1], rel=0.02)
    plain = records(tmp_path / "plain")[0]
    assert "alignment_loss" not in plain
    assert whole[0]["loss"] == pytest.approx(plain["loss"] + 0.5 * losses[0], rel=1e-5)
