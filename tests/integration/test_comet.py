"""COMET in an environment of its own.

Needs ``DST_COMET_PYTHON``, the Python of an environment made with
``pip install unbabel-comet==2.2.7 'setuptools<81' 'numpy<2' 'transformers<5'``.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.processes.launching import run_command, run_dst

pytestmark = pytest.mark.slow

LINES = {
    "test.en": ["A dog runs.", "Two men talk in a house.", "The child sleeps."],
    "test.de": ["Ein Hund läuft.", "Zwei Männer reden in einem Haus.", "Das Kind schläft."],
    "ours.de": ["Ein Hund rennt.", "Zwei Männer sprechen im Haus.", "Das Kind."],
    "theirs.de": ["Hund.", "Männer Haus reden zwei.", "Das Kind schläft."],
}

#: Writes a COMET model of random weights: XLM-R of width 32, whose vocabulary is the words of a file.
MAKE = """
import sys, pathlib, tokenizers, torch, transformers, yaml
from comet.models import RegressionMetric
text, out = sys.argv[1], pathlib.Path(sys.argv[2])
encoder = out / "encoder"
encoder.mkdir(parents=True)
words = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="<unk>"))
words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
words.train([text], tokenizers.trainers.WordLevelTrainer(special_tokens=names))
words.post_processor = tokenizers.processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
tokenizer = transformers.XLMRobertaTokenizerFast(tokenizer_object=words)
tokenizer.save_pretrained(encoder)
torch.manual_seed(1)
config = transformers.XLMRobertaConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2,
    num_attention_heads=2, intermediate_size=64, max_position_embeddings=130, type_vocab_size=1)
transformers.XLMRobertaModel(config).save_pretrained(encoder)
model = RegressionMetric(encoder_model="XLM-RoBERTa", pretrained_model=str(encoder), hidden_sizes=[16], layer="mix",
    nr_frozen_epochs=0, local_files_only=True)
(out / "checkpoints").mkdir()
import pytorch_lightning
torch.save({"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams),
    "pytorch-lightning_version": pytorch_lightning.__version__}, out / "checkpoints" / "model.ckpt")
hparams = {name: value for name, value in model.hparams.items() if name != "local_files_only"}
(out / "hparams.yaml").write_text(yaml.safe_dump({**hparams, "class_identifier": "regression_metric"}))
"""


@pytest.fixture(scope="module")
def comet_python() -> str:
    python = os.environ.get("DST_COMET_PYTHON")
    if python is None:
        pytest.skip("DST_COMET_PYTHON does not name the Python of an environment with unbabel-comet")
    return python


@pytest.fixture
def model(comet_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, lines in LINES.items():
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    Path("text").write_text("".join(f"{line}\n" for lines in LINES.values() for line in lines) * 20, encoding="utf-8")
    done = run_command([comet_python, "-I", "-c", MAKE, "text", "tiny"])
    assert done.returncode == 0, done.stderr
    return Path("tiny")


def test_scores_are_those_of_comet_score(comet_python: str, model: Path) -> None:
    """To the precision of fp16, in which ``comet-score`` computes."""
    options = ["--src", "test.en", "--ref", "test.de", "--systems", "ours.de", "theirs.de", "--comet", str(model)]
    done = run_dst("evaluate", *options, "--comet-python", comet_python, "--json", cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["results"]

    theirs = Path(comet_python).with_name("comet-score")
    command = [str(theirs), "-s", "test.en", "-r", "test.de", "-t", "ours.de", "theirs.de", "--gpus", "0"]
    command += ["--model", str(model / "checkpoints" / "model.ckpt"), "--to_json", "scores.json", "--batch_size", "16"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run(command, check=True, env=plain | {"HF_HUB_OFFLINE": "1"}, capture_output=True)
    wanted = json.loads(Path("scores.json").read_text())
    for name, result in zip(("ours.de", "theirs.de"), found, strict=True):
        scores = [100 * entry["COMET"] for entry in wanted[name]]
        assert result["sentence_scores"]["comet"] == pytest.approx(scores, rel=1e-2)
        assert result["metrics"]["comet"] == pytest.approx(sum(scores) / 3, rel=1e-2)
        assert result["signatures"]["comet"].startswith("comet:tiny|sha256:")
    assert found[0]["metrics"]["comet"] != found[1]["metrics"]["comet"]


def test_a_file_that_is_no_model_is_one_line(comet_python: str, model: Path) -> None:
    Path("no.ckpt").write_text("nothing")
    options = ["--src", "test.en", "--ref", "test.de", "--systems", "ours.de", "--comet", "no.ckpt"]
    done = run_dst("evaluate", *options, "--comet-python", comet_python, cwd=Path.cwd())
    assert (done.returncode, done.stdout) == (2, "")
    assert "dst: error: --comet no.ckpt cannot be loaded: " in done.stderr
    assert done.stderr.count("\n") == 1
