"""Guided alignment trains the same on two ranks at every ZeRO stage, and after a resume."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.data.prep import ENGLISH, GERMAN, build, sentence
from support.training.cases import case, train_cases
from support.training.runs import losses, trace

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


def test_ranks_stages_and_resumes_compute_the_same(corpus: Path, tmp_path: Path) -> None:
    cases = [case(f"zero{stage}", *GUIDED, fragments=(f"zero{stage}", "fp32"), final=True) for stage in (0, 1, 3)]
    cases.append(case("resumed", *GUIDED, resume="zero1/checkpoints/step-00000006"))
    cases.append(case("bf16", *GUIDED, fragments=("zero3", "bf16")))
    cases.append(case("plain", *UNGUIDED))
    train_cases(tmp_path, corpus, cases)
    whole = tmp_path / "zero1"
    for other in ("zero0", "zero3"):
        for name in ("loss", "alignment_loss"):
            assert trace(tmp_path / other, name) == pytest.approx(trace(whole, name), rel=1e-4)
    for name in ("loss", "alignment_loss"):
        assert trace(tmp_path / "resumed", name) == trace(whole, name)[6:]
    guided = trace(whole, "alignment_loss")
    assert trace(tmp_path / "bf16", "alignment_loss")[-1] == pytest.approx(guided[-1], rel=0.02)
    assert losses(whole)[0] == pytest.approx(losses(tmp_path / "plain")[0] + 0.5 * guided[0], rel=1e-5)
