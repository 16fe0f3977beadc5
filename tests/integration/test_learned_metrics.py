"""COMET and COMETKiwi in an environment of their own, and MetricX in this one, each with random weights."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from support.processes.environments import side_python
from support.processes.launching import run_command, run_dst
from support.services.mlflow_runs import tracked_run

pytestmark = pytest.mark.slow

LINES = {
    "test.en": ["A dog runs.", "Two men talk in a house.", "The child sleeps."],
    "test.de": ["Ein Hund läuft.", "Zwei Männer reden in einem Haus.", "Das Kind schläft."],
    "ours.de": ["Ein Hund rennt.", "Zwei Männer sprechen im Haus.", "Das Kind."],
    "theirs.de": ["Hund.", "Männer Haus reden zwei.", "Das Kind schläft."],
}

#: Writes a COMET and a COMETKiwi model of random weights: XLM-R of width 32, whose vocabulary is the words of a file.
MAKE = """
import sys, pathlib, tokenizers, torch, transformers, yaml
from comet.models import RegressionMetric, UnifiedMetric
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
import pytorch_lightning
common = dict(encoder_model="XLM-RoBERTa", pretrained_model=str(encoder), hidden_sizes=[16], nr_frozen_epochs=0,
    local_files_only=True)
kiwi = UnifiedMetric(**common, word_layer=2, input_segments=["mt", "src"])
for name, model in (("da", RegressionMetric(**common)), ("kiwi", kiwi)):
    folder = out / name / "checkpoints"
    folder.mkdir(parents=True)
    torch.save({"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams),
        "pytorch-lightning_version": pytorch_lightning.__version__}, folder / "model.ckpt")
    hparams = {name: value for name, value in model.hparams.items() if name != "local_files_only"}
    kind = "regression_metric" if name == "da" else "unified_metric"
    (out / name / "hparams.yaml").write_text(yaml.safe_dump({**hparams, "class_identifier": kind}))
"""


@pytest.fixture(scope="module")
def comet_python() -> str:
    return str(side_python("comet", "comet", "unbabel-comet==2.2.7 'setuptools<81' 'numpy<2' 'transformers<5'"))


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, lines in LINES.items():
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def models(comet_python: str, texts: None) -> Path:
    Path("text").write_text("".join(f"{line}\n" for lines in LINES.values() for line in lines) * 20, encoding="utf-8")
    done = run_command([comet_python, "-I", "-c", MAKE, "text", "tiny"])
    assert done.returncode == 0, done.stderr
    return Path("tiny")


def test_scores_are_those_of_comet_score(comet_python: str, models: Path) -> None:
    """To the precision of fp16, in which ``comet-score`` computes."""
    options = ["--src", "test.en", "--ref", "test.de", "--systems", "ours.de", "theirs.de"]
    options += ["--comet", str(models / "da"), "--comet", str(models / "kiwi"), "--metric-python", comet_python]
    done = run_dst("evaluate", *options, "--json", cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["results"]

    theirs = Path(comet_python).with_name("comet-score")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for score, model, reference in (("comet", "da", ["-r", "test.de"]), ("cometkiwi", "kiwi", [])):
        command = [str(theirs), "-s", "test.en", *reference, "-t", "ours.de", "theirs.de", "--gpus", "0"]
        command += ["--model", str(models / model / "checkpoints" / "model.ckpt"), "--to_json", "scores.json"]
        subprocess.run([*command, "--batch_size", "16"], check=True, env=plain | {"HF_HUB_OFFLINE": "1"})
        wanted = json.loads(Path("scores.json").read_text())
        for name, result in zip(("ours.de", "theirs.de"), found, strict=True):
            scores = [100 * entry["COMET"] for entry in wanted[name]]
            assert result["sentence_scores"][score] == pytest.approx(scores, rel=1e-2, abs=0.02)
            assert result["metrics"][score] == pytest.approx(sum(scores) / 3, rel=1e-2, abs=0.02)
            assert result["signatures"][score].startswith(f"{score}:{model}|sha256:")
        assert found[0]["metrics"][score] != found[1]["metrics"][score]


def write_metricx(folder: Path) -> Any:
    """A MetricX model of random weights, whose tokenizer is of words; returns a function that scores a text."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'dstransformer[hf]'")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = sorted({word for lines in LINES.values() for line in lines for word in re.findall(r"\w+|[^\w\s]+", line)})
    names = ["<pad>", "</s>", "<unk>", "source", "candidate", "reference", ":", *words]
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(3)
    config = transformers.MT5Config(vocab_size=250112, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=2,
        num_heads=2, tie_word_embeddings=False, decoder_start_token_id=0)  # fmt: skip
    model = transformers.MT5ForConditionalGeneration(config).eval().requires_grad_(False)

    def state(text: str) -> torch.Tensor:
        ids = [names.index(word) if word in names else 2 for word in re.findall(r"\w+|[^\w\s]+", text)]
        encoded = model.encoder(input_ids=torch.tensor([ids])).last_hidden_state
        found = model.decoder(input_ids=torch.tensor([[0]]), encoder_hidden_states=encoded).last_hidden_state
        return cast(torch.Tensor, found[0, 0])

    model.lm_head.weight[250089] = 0.5 * state("source: A")  # so that scores lie in between
    model.save_pretrained(folder)
    return lambda text: float((state(text) @ model.lm_head.weight[250089]).clamp(0, 25))


def test_metricx_is_a_logit_of_mt5(texts: None) -> None:
    score = write_metricx(Path("metricx"))
    options = ["--src", "test.en", "--ref", "test.de", "--systems", "ours.de", "theirs.de", "--metricx", "metricx"]
    done = run_dst("evaluate", *options, "--json", cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    for name, result in zip(("ours.de", "theirs.de"), json.loads(done.stdout)["results"], strict=True):
        wanted = [
            score(f"source: {source} candidate: {translation} reference: {reference}")
            for source, translation, reference in zip(LINES["test.en"], LINES[name], LINES["test.de"], strict=True)
        ]
        assert len(set(wanted)) == 3
        assert result["sentence_scores"]["metricx"] == pytest.approx(wanted, abs=1e-3)
        assert result["metrics"]["metricx"] == pytest.approx(sum(wanted) / 3, abs=1e-3)


@pytest.fixture
def finished(plain_copy: Path) -> Path:
    """A finished run with its newest checkpoint only."""
    for folder in sorted((plain_copy / "checkpoints").glob("step-*"))[:-1]:
        shutil.rmtree(folder)
    return plain_copy


def test_a_run_that_is_followed_gets_learned_scores_in_mlflow(finished: Path, tmp_path: Path) -> None:
    write_metricx(tmp_path / "metricx")
    done = run_dst("evaluate", "--follow", str(finished), "--track", "--metricx", str(tmp_path / "metricx"))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert all(re.search(r"  BLEU \S+  .*  MetricX \d", line) for line in done.stdout.splitlines())
    assert "evaluate/validation/metricx" in tracked_run(finished)[1].data.metrics


def test_a_metric_that_fails_costs_a_run_that_is_followed_a_warning(finished: Path, tmp_path: Path) -> None:
    write_metricx(tmp_path / "metricx")
    program = tmp_path / "python"
    program.write_text(f"""#!/bin/sh
exec {sys.executable} -c "
print('{{\\"name\\": \\"metricx\\", \\"uses_references\\": true, \\"version\\": \\"0\\"}}', flush=True)
input()
raise SystemExit('out of memory')"
""")
    program.chmod(0o755)
    options = ["--metricx", str(tmp_path / "metricx"), "--metric-python", str(program)]
    done = run_dst("evaluate", "--follow", str(finished), *options)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert "MetricX" not in done.stdout
    assert done.stderr.count("ended with status 1: out of memory: no metricx score for validation") == 2
