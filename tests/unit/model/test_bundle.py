from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import yaml
from support.processes.launching import run_command

from dstransformer.config import load_config
from dstransformer.data import Corpus
from dstransformer.errors import ConfigError, DataError, DstError
from dstransformer.io.products import write_marker
from dstransformer.model import Transformer, open_bundle, save_bundle
from dstransformer.model.cost import meta_device
from dstransformer.training.checkpoints.averaging import average_weights

SMALL = ["model.num_layers=1", "model.d_model=16", "model.d_ff=16", "model.num_heads=2", "model.d_k=8", "model.d_v=8"]


def write(folder: Path, toy_corpus: Path, seed: int, *overrides: str) -> Path:
    config = load_config("base", [*SMALL, *overrides])
    tokenizer = Corpus.open(toy_corpus).tokenizer
    torch.manual_seed(seed)
    model = Transformer(config.model, tokenizer.vocab_size)
    save_bundle(folder, model.state_dict(), config, tokenizer, {"step": seed, "src_lang": "en"})
    return folder


def test_a_bundle_holds_the_model_and_its_provenance(tmp_path: Path, toy_corpus: Path) -> None:
    path = write(tmp_path / "bundle", toy_corpus, 3)
    assert {file.name for file in path.iterdir()} == {
        "dst.json",
        "model.safetensors",
        "config.yaml",
        "tokenizer.model",
        "provenance.json",
    }
    bundle = open_bundle(path)
    assert bundle.provenance["step"] == 3
    assert (bundle.src_lang, bundle.tgt_lang) == ("en", None)
    assert bundle.training_config() == load_config("base", SMALL)
    torch.manual_seed(3)
    expected = Transformer(bundle.model, bundle.tokenizer.vocab_size).state_dict()
    torch.testing.assert_close(dict(bundle.build_model().state_dict()), dict(expected), rtol=0, atol=0)
    assert not bundle.build_model().training


def test_a_bundle_states_its_whole_architecture(tmp_path: Path, toy_corpus: Path) -> None:
    deep = write(tmp_path / "deep", toy_corpus, 1, "model.encoder_layers=2", "model.output_bias=true")
    stored = yaml.safe_load((deep / "config.yaml").read_text())
    opened = open_bundle(deep)
    assert stored["model"] == opened.model.model_dump()
    assert stored["decoding"] == opened.decoding.model_dump()
    model = opened.build_model()
    assert (len(model.encoder), len(model.decoder)) == (2, 1)
    assert model.output_bias is not None


def test_an_activation_that_the_weights_were_not_trained_with_is_refused(tmp_path: Path, toy_corpus: Path) -> None:
    path = write(tmp_path / "bundle", toy_corpus, 1)
    stored = yaml.safe_load((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(yaml.safe_dump(stored | {"model": stored["model"] | {"activation": "gelu"}}))
    with pytest.raises(DataError, match=r"model.activation is 'gelu', .*'relu'"):
        open_bundle(path)


def test_a_run_folder_opens_as_its_bundle(tmp_path: Path, toy_corpus: Path) -> None:
    (tmp_path / "run").mkdir()
    write(tmp_path / "run" / "bundle", toy_corpus, 1)
    assert open_bundle(tmp_path / "run").path == tmp_path / "run" / "bundle"


def test_a_run_without_a_final_bundle_opens_as_its_newest_checkpoint(
    tmp_path: Path, toy_corpus: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_marker(run, "run")
    with pytest.raises(DataError, match="is a run"):
        open_bundle(run)
    for name in ("step-00000900", ".partial-step-00002000", "step-00001000", "step-2000"):
        (run / "checkpoints" / name).mkdir(parents=True)
        write(run / "checkpoints" / name / "bundle", toy_corpus, 1)
    assert open_bundle(run).path == run / "checkpoints" / "step-00001000" / "bundle"
    assert caplog.messages == [f"{run} has no final bundle yet: this is its newest checkpoint, step-00001000"]


def test_the_average_is_the_mean_of_each_weight(tmp_path: Path, toy_corpus: Path) -> None:
    bundles = [open_bundle(write(tmp_path / str(seed), toy_corpus, seed)) for seed in (1, 2, 3)]
    averaged = average_weights(bundles)
    for name, weight in averaged.items():
        expected = torch.stack([bundle.load_weights()[name].double() for bundle in bundles]).mean(dim=0).float()
        torch.testing.assert_close(weight, expected, rtol=0, atol=0)


def test_models_of_different_architectures_are_not_averaged(tmp_path: Path, toy_corpus: Path) -> None:
    one, other = write(tmp_path / "1", toy_corpus, 1), write(tmp_path / "2", toy_corpus, 2, "model.d_ff=32")
    with pytest.raises(DataError, match="have different architectures"):
        average_weights([open_bundle(one), open_bundle(other)])


def test_missing_incomplete_and_damaged_bundles_are_refused(tmp_path: Path, toy_corpus: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        open_bundle(tmp_path / "none")
    with pytest.raises(DataError, match="is not a bundle"):
        open_bundle(tmp_path)
    path = write(tmp_path / "bundle", toy_corpus, 1)
    weights = path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(DataError, match="does not match its hash"):
        open_bundle(path).load_weights()


def test_weights_of_another_architecture_are_refused_in_one_line(tmp_path: Path, toy_corpus: Path) -> None:
    path = write(tmp_path / "bundle", toy_corpus, 1)
    config = (path / "config.yaml").read_text()
    forget(path, "config")
    for change in (("d_ff: 16", "d_ff: 32"), ("num_layers: 1", "num_layers: 40"), ("d_model: 16", "d_model: 1000000")):
        (path / "config.yaml").write_text(config.replace(*change))
        with pytest.raises(DataError, match=r"config\.yaml and tokenizer\.model") as caught:
            open_bundle(path).build_model()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 350 + len(str(path))


def forget(path: Path, *keys: str) -> None:
    """Remove keys from a bundle's provenance, as in bundles of older versions."""
    provenance = json.loads((path / "provenance.json").read_text())
    (path / "provenance.json").write_text(json.dumps({k: v for k, v in provenance.items() if k not in keys}))


def test_a_different_head_width_is_refused_although_the_weights_fit(tmp_path: Path, toy_corpus: Path) -> None:
    path = write(tmp_path / "bundle", toy_corpus, 1)
    config = (path / "config.yaml").read_text()
    changed = config.replace("num_heads: 2", "num_heads: 4").replace("d_k: 8", "d_k: 4").replace("d_v: 8", "d_v: 4")
    (path / "config.yaml").write_text(changed)
    with pytest.raises(DataError, match=r"model\.num_heads is 4, .*2"):
        open_bundle(path)


@pytest.mark.parametrize("change", [("beam_size: 4", "beam_size: two"), ("model:", "model: ["), ("", None)])
def test_a_damaged_configuration_is_refused_with_advice(
    tmp_path: Path, toy_corpus: Path, change: tuple[str, str | None]
) -> None:
    path = write(tmp_path / "bundle", toy_corpus, 1)
    old, new = change
    config = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text("" if new is None else config.replace(old, new))
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        open_bundle(path)


def test_a_provenance_without_hashes_is_refused(tmp_path: Path, toy_corpus: Path) -> None:
    path = write(tmp_path / "bundle", toy_corpus, 1)
    (path / "provenance.json").write_text("{}")
    with pytest.raises(DataError, match=r"provenance\.json .*hashes"):
        open_bundle(path)


def test_decoding_settings_may_be_edited(tmp_path: Path, toy_corpus: Path) -> None:
    path = write(tmp_path / "bundle", toy_corpus, 1)
    config = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(config.replace("beam_size: 4", "beam_size: 9"))
    assert open_bundle(path).decoding.beam_size == 9


@pytest.mark.parametrize("damage", [b"\x12\x00", b"x"])
def test_another_tokenizer_is_refused(tmp_path: Path, toy_corpus: Path, damage: bytes) -> None:
    path = write(tmp_path / "bundle", toy_corpus, 1)
    open_bundle(path)
    with (path / "tokenizer.model").open("ab") as file:
        file.write(damage)
    with pytest.raises(DataError, match=r"tokenizer\.model"):
        open_bundle(path)


def test_unreadable_weights_are_refused(tmp_path: Path, toy_corpus: Path) -> None:
    path = write(tmp_path / "bundle", toy_corpus, 1)
    for content in (b"", b"x" * 4096):
        (path / "model.safetensors").write_bytes(content)
        provenance = json.loads((path / "provenance.json").read_text())
        provenance["files"]["model.safetensors"] = hashlib.sha256(content).hexdigest()
        (path / "provenance.json").write_text(json.dumps(provenance))
        with pytest.raises(DataError, match=r"model\.safetensors"):
            open_bundle(path).build_model()


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml", "tokenizer.model", "provenance.json", "."])
def test_files_without_read_permission_are_reported(toy_corpus: Path, name: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = write(Path(folder) / "bundle", toy_corpus, 1)
        (path / name).chmod(0)
        os.seteuid(65534)
        try:
            with pytest.raises(DstError, match=r"cannot read .*: Permission denied"):
                open_bundle(path).build_model()
        finally:
            os.seteuid(0)


def test_a_model_on_the_meta_device_draws_no_random_numbers() -> None:
    config = load_config("base", SMALL).model
    before = torch.get_rng_state()
    with meta_device():
        model = Transformer(config, 40)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert torch.equal(torch.get_rng_state(), before)


def test_translating_never_imports_the_compiler(tmp_path: Path, toy_corpus: Path) -> None:
    path = write(tmp_path / "bundle", toy_corpus, 1)
    program = (
        "import sys; from dstransformer.decoding import Translator as T; print(T.load(sys.argv[1]).translate(['a']))"
    )
    check = "; sys.exit('torch._dynamo' in sys.modules)"
    done = run_command([sys.executable, "-c", program + check, str(path)])
    assert done.returncode == 0, done.stdout + done.stderr
