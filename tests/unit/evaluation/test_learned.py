"""The process of a learned metric, with a stand-in for COMET; ``test_learned_metrics.py`` has the real ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dstransformer.errors import DataError, DstError
from dstransformer.evaluation.learned import LearnedMetric

STAND_IN = """
from types import SimpleNamespace
class RegressionMetric:
    hparams = SimpleNamespace()
    def requires_references(self):
        return True
    def predict(self, samples, batch_size, gpus, progress_bar):
        if samples[0]["mt"] == "dies":
            raise SystemExit("out of memory")
        print("a library says something")
        if any(not sample["mt"] for sample in samples):
            raise ValueError("an empty\\nline")
        if samples[0]["mt"] == "nan":
            return SimpleNamespace(scores=[float("nan")])
        scores = [len(sample["mt"]) / len(sample["ref"]) for sample in samples]
        return SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))
def load_from_checkpoint(path, local_files_only):
    assert local_files_only
    text = open(path).read()
    if text == "dies":
        raise SystemExit("out of memory")
    if text != "model":
        raise RuntimeError(f"{text!r} is no model")
    return RegressionMetric()
"""


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A Python whose environment has the stand-in."""
    packages = tmp_path / "packages"
    (packages / "unbabel_comet-2.2.7.dist-info").mkdir(parents=True)
    (packages / "unbabel_comet-2.2.7.dist-info" / "METADATA").write_text("Name: unbabel-comet\nVersion: 2.2.7\n")
    (packages / "comet.py").write_text(STAND_IN)
    (packages / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
    start = f"import sys, runpy; sys.path.insert(0, {str(packages)!r}); sys.argv = sys.argv[1:]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} -I -c "{start}" "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "wmt" / "checkpoints" / "model.ckpt"
    path.parent.mkdir(parents=True)
    path.write_text("model")
    return path


def test_it_scores_sentences_and_systems(python: str, checkpoint: Path) -> None:
    with LearnedMetric("comet", str(checkpoint.parents[1]), python) as comet:
        for translations, wanted in ((["ab", "äöü"], [50.0, 75.0]), (["abcd", "a"], [100.0, 25.0])):
            score, each = comet.score(["x", "y"], translations, ["wxyz", "wxyz"])
            assert each == wanted
            assert (score.name, score.value) == ("comet", sum(wanted) / 2)
            assert score.signature.startswith("comet:wmt|sha256:9372c470eeadd5ec|version:unbabel-comet 2.2.7|scale:100")


def test_errors_are_one_line_and_the_model_goes_on(python: str, checkpoint: Path) -> None:
    with LearnedMetric("comet", str(checkpoint), python) as comet:
        with pytest.raises(DstError, match=r"^COMET .*an empty line$"):
            comet.score(["x"], [""], ["y"])
        assert comet.score(["x"], ["y"], ["y"])[1] == [100.0]
    checkpoint.write_text("text")
    with pytest.raises(DataError, match=r"^--comet .*'text' is no model$"):
        LearnedMetric("comet", str(checkpoint), python)


def test_a_model_whose_process_has_ended_is_loaded_again(python: str, checkpoint: Path) -> None:
    with LearnedMetric("comet", str(checkpoint), python) as comet:
        with pytest.raises(DstError, match=r"--comet .*status 1: out of memory$"):
            comet.score(["x"], ["dies"], ["y"])
        assert comet.score(["x"], ["y"], ["y"])[1] == [100.0]


@pytest.mark.parametrize("said", ["", "half a li", "no JSON\n", "[1]\n"])
def test_a_process_that_says_something_else_is_an_error(said: str, checkpoint: Path, tmp_path: Path) -> None:
    program = tmp_path / "strange"
    program.write_text(f"#!/bin/sh\nprintf '%s' '{said}'\n")
    program.chmod(0o755)
    with pytest.raises(DstError, match=r"--comet \(.*strange\)"):
        LearnedMetric("comet", str(checkpoint), str(program))


def test_a_score_that_is_not_a_number_is_an_error(python: str, checkpoint: Path) -> None:
    with (
        LearnedMetric("comet", str(checkpoint), python) as comet,
        pytest.raises(DstError, match="COMET of a sentence is"),
    ):
        comet.score(["x"], ["nan"], ["y"])
