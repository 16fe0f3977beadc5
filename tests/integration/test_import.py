"""A model of transformers in the hands of a user: imported, used by every command, trained further, exported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.data.corpora import build_toy
from support.models.opus import as_marian, opus_folder
from support.processes.launching import run_dst
from support.training.runs import TINY

from data_prep.cli import main as dst_prep
from dstransformer.cli.program import run as dst
from dstransformer.decoding import Translator
from dstransformer.model import open_bundle


@pytest.fixture(scope="module")
def imported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``bundle``, imported."""
    folder = tmp_path_factory.mktemp("imported")
    marian = as_marian(trained, folder / "marian")
    where = ["--out", str(folder / "bundle"), "--src-lang", "en", "--tgt-lang", "de"]
    assert dst(["import", "hf", str(marian), *where]) == 0
    return folder


def build(folder: Path, out: Path) -> Path:
    """A larger corpus with both tokenizers of the bundle."""
    source, target = (str(folder / "bundle" / name) for name in ("tokenizer.src.model", "tokenizer.model"))
    models = ["--no-joint", "--src-tokenizer-model", source, "--tokenizer-model", target]
    return build_toy(out, 4000, *models, vocab_size=None)


@pytest.mark.slow
@pytest.mark.extended
def test_an_imported_model_is_trained_further_and_translates_better(imported: Path, tmp_path: Path) -> None:
    corpus, run = build(imported, tmp_path / "corpus"), tmp_path / "run"
    begin = ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--init", str(imported / "bundle")]
    mine = [value for value in TINY if not value.startswith(("model.", "batch."))]
    mine += ["batch.src_tokens=2400", "batch.tgt_tokens=2400", "batch.micro_batches=1"]
    mine += ["training.max_updates=200", "schedule.peak=0.003", "validation.final_sentences=0", "decoding.beam_size=4"]
    refused = run_dst(*begin, "--set", *mine)
    assert refused.returncode == 2
    advice = re.search(r"has another architecture: .*; give --set (.*)", refused.stderr)
    assert advice is not None, refused.stderr
    done = run_dst(*begin, "--set", *mine, *advice[1].split())
    assert done.returncode == 0, done.stderr
    tuned = open_bundle(run)
    assert (tuned.model.tie_embeddings, tuned.model.norm_epsilon) == ("all", 1e-5)
    assert tuned.provenance["parent"]["same_tokenizer"]
    files = [str(tmp_path / f"valid.{name}") for name in ("en", "de")]
    assert dst_prep(["text", str(corpus), "--split", "validation", "--src", files[0], "--tgt", files[1]]) == 0
    scores = {}
    for name, bundle in (("imported", imported / "bundle"), ("tuned", run)):
        found = run_dst("evaluate", str(bundle), "--src", files[0], "--ref", files[1], "--json")
        assert found.returncode == 0, found.stderr
        scores[name] = json.loads(found.stdout)["metrics"]["chrf"]
    assert scores["tuned"] > scores["imported"] + 5, scores


def test_every_use_of_a_bundle_works_with_an_imported_one(tmp_path: Path) -> None:
    folder = opus_folder(tmp_path / "opus", tags=[">>deu<<", ">>nld<<"])
    bundle, text, out = tmp_path / "bundle", tmp_path / "text", tmp_path / "out"
    assert dst(["import", "hf", str(folder), "--out", str(bundle)]) == 0
    text.write_text("The quick fox jumps.\nTwo small dogs.\n")
    assert dst(["translate", str(bundle), str(text), "--beam", "1", "--to", "nld", "--output", str(out)]) == 0
    ours = out.read_text().splitlines()
    assert len(ours) == 2
    assert dst(["score", str(bundle), "--src", str(text), "--tgt", str(out), "--to", "nld"]) == 0
    assert dst(["export", "ct2", str(bundle), str(tmp_path / "ct2")]) == 0
    again = ["--engine", "ct2", "--beam", "1", "--to", "nld", "--output", str(out), "--overwrite"]
    assert dst(["translate", str(tmp_path / "ct2"), str(text), *again]) == 0
    assert out.read_text().splitlines() == ours
    assert dst(["translate", str(bundle), str(text)]) == 2
    settings = open_bundle(bundle).decoding.model_copy(update={"beam_size": 1})
    assert Translator.load(bundle, settings=settings).translate([">>nld<< Two small dogs."]) == ours[1:]
