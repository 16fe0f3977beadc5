from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dstransformer.config import load_config
from dstransformer.corpus import Corpus
from dstransformer.errors import DataError
from dstransformer.model import Transformer, open_bundle, save_bundle
from dstransformer.training.averaging import average_weights

SMALL = ["model.num_layers=1", "model.d_model=16", "model.d_ff=16", "model.num_heads=2", "model.d_k=8", "model.d_v=8"]


def write(folder: Path, toy_corpus: Path, seed: int, *overrides: str) -> Path:
    config = load_config("base", [*SMALL, *overrides])
    tokenizer = Corpus.open(toy_corpus).tokenizer
    torch.manual_seed(seed)
    model = Transformer(config.model, tokenizer.vocab_size)
    save_bundle(folder, model.state_dict(), config, tokenizer, {"step": seed})
    return folder


def test_a_bundle_holds_the_model_and_how_it_came_about(tmp_path: Path, toy_corpus: Path) -> None:
    path = write(tmp_path / "bundle", toy_corpus, 3)
    assert {file.name for file in path.iterdir()} == {
        "model.safetensors",
        "config.yaml",
        "tokenizer.model",
        "provenance.json",
    }
    bundle = open_bundle(path)
    assert bundle.provenance["step"] == 3
    torch.manual_seed(3)
    expected = Transformer(bundle.config.model, bundle.tokenizer.vocab_size).state_dict()
    torch.testing.assert_close(dict(bundle.build_model().state_dict()), dict(expected), rtol=0, atol=0)
    assert not bundle.build_model().training


def test_a_checkpoint_or_run_folder_opens_as_its_bundle(tmp_path: Path, toy_corpus: Path) -> None:
    write(tmp_path / "run" / "bundle", toy_corpus, 1)
    assert open_bundle(tmp_path / "run").path == tmp_path / "run" / "bundle"


def test_the_average_is_the_mean_of_each_weight(tmp_path: Path, toy_corpus: Path) -> None:
    bundles = [open_bundle(write(tmp_path / str(seed), toy_corpus, seed)) for seed in (1, 2, 3)]
    averaged = average_weights(bundles)
    for name, weight in averaged.items():
        expected = torch.stack([bundle.load_weights()[name].double() for bundle in bundles]).mean(dim=0).float()
        torch.testing.assert_close(weight, expected, rtol=0, atol=0)


def test_models_of_two_architectures_are_not_averaged(tmp_path: Path, toy_corpus: Path) -> None:
    one, other = write(tmp_path / "1", toy_corpus, 1), write(tmp_path / "2", toy_corpus, 2, "model.d_ff=32")
    with pytest.raises(DataError, match="another architecture"):
        average_weights([open_bundle(one), open_bundle(other)])


def test_what_is_no_bundle_is_refused(tmp_path: Path, toy_corpus: Path) -> None:
    with pytest.raises(DataError, match="not a folder"):
        open_bundle(tmp_path / "none")
    with pytest.raises(DataError, match="is not a bundle: it lacks"):
        open_bundle(tmp_path)
    path = write(tmp_path / "bundle", toy_corpus, 1)
    weights = path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(DataError, match="does not match the hash"):
        open_bundle(path).load_weights()


def test_weights_of_another_architecture_are_refused(tmp_path: Path, toy_corpus: Path) -> None:
    path = write(tmp_path / "bundle", toy_corpus, 1)
    config = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(config.replace("d_ff: 16", "d_ff: 32"))
    with pytest.raises(DataError, match=r"does not fit config\.yaml"):
        open_bundle(path).build_model()
    (path / "provenance.json").write_text(json.dumps([])[:1])
    with pytest.raises(DataError, match="not readable JSON"):
        open_bundle(path)
