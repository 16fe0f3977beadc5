"""``dst attention`` in process: what it writes, and what it refuses in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.models.attention import save_tiny_bundle
from support.models.threads import one_thread  # noqa: F401

from dstransformer.cli import main
from dstransformer.decoding import Translator
from dstransformer.extras.paper.attention import FILES, WEIGHTS
from dstransformer.model import attention_weights

SENTENCE = "The quick brown fox jumps over the lazy dog."
TARGET = "Zwölf Boxkämpfer jagen Viktor."


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_bundle(tmp_path_factory.mktemp("model") / "bundle")


@pytest.fixture(scope="module")
def short_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with learned positions for 24 pieces, and at most 9 pieces of input."""
    folder = tmp_path_factory.mktemp("model") / "short"
    return save_tiny_bundle(folder, ("decoding.max_input_tokens=9",), positions="learned", max_positions=24)


@pytest.fixture(scope="module")
def uneven_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with 3 layers in its encoder and 1 in its decoder."""
    return save_tiny_bundle(tmp_path_factory.mktemp("model") / "uneven", decoder_layers=1)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["attention", *arguments]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("dst: error: ")
    assert errors.count("\n") == 1
    return errors


def test_all_files_are_written(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "out"
    assert main(["attention", str(bundle), SENTENCE, "--target", TARGET, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == f"{SENTENCE} → {TARGET}"
    assert printed.splitlines()[1].endswith("and 12 pictures of layer 3 of 3, heads 1, 2, 3, 4")
    assert names(out) == set(FILES)
    assert not list(tmp_path.glob(".*"))


def test_the_saved_weights_are_those_of_the_model(bundle: Path, tmp_path: Path) -> None:
    options = ["--target", TARGET, "--kind", "cross", "--layer", "1", "--heads", "2", "--whole-words"]
    assert main(["attention", str(bundle), SENTENCE, "--out", str(tmp_path / "out"), *options]) == 0
    translator = Translator.load(bundle, device="cpu")
    (src,), (tgt,) = (translator.tokenizer.encode([text]) for text in (SENTENCE, TARGET))
    expected = attention_weights(translator.model, torch.tensor([*src, 3]), torch.tensor([2, *tgt]))
    with np.load(tmp_path / "out" / "attention.npz", allow_pickle=False) as arrays:
        found = dict(arrays)
    for kind, part in expected._asdict().items():
        np.testing.assert_array_equal(found[kind], part.numpy())
    assert list(found["src_pieces"]) == [*translator.tokenizer.pieces(src), "</s>"]
    assert list(found["tgt_in_words"]) == ["<s>", "Zwölf", "Boxkämpfer", "jagen", "Viktor", "."]
    assert list(found["tgt_out_words"]) == ["Zwölf", "Boxkämpfer", "jagen", "Viktor", ".", "</s>"]
    sides = {"encoder": ("src", "src"), "decoder": ("tgt_out", "tgt_in"), "cross": ("tgt_out", "src")}
    for kind, (queries, keys) in sides.items():
        assert found[kind].shape == (3, 4, len(found[f"{queries}_pieces"]), len(found[f"{keys}_pieces"]))
        merged = found[f"{kind}_words"]
        assert merged.shape == (3, 4, len(found[f"{queries}_words"]), len(found[f"{keys}_words"]))
        np.testing.assert_allclose(merged.sum(-1), 1.0, rtol=1e-5)


def test_without_a_target_the_model_translates(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["attention", str(bundle), SENTENCE, "--out", str(out), "--beam", "2", "--kind", "decoder"]) == 0
    translation = capsys.readouterr().out.splitlines()[0].removeprefix(f"{SENTENCE} → ")
    translator = Translator.load(bundle, device="cpu")
    settings = translator.settings.model_copy(update={"beam_size": 2})
    assert translation == Translator(translator.engine, translator.tokenizer, settings).translate([SENTENCE])[0]
    pictures = {f"decoder-{form}.{end}" for form in ("lines", "maps") for end in ("svg", "png")}
    assert names(out) == {"attention.html", "attention.npz"} | pictures


LONG = "dog " * 24


@pytest.mark.parametrize(("model", "sentence", "options", "message"), [
    ("bundle", SENTENCE, ["--layer", "4"], "--layer 4: the model has 3 layers, numbered from 1: give 1 to 3"),
    ("bundle", SENTENCE, ["--heads", "1,5"], "--heads 5: the model has 4 heads in each layer, numbered from 1: give 1"),
    ("bundle", SENTENCE, ["--heads", "one"], "argument --heads: 'one' is not numbers with commas, as in 5,6"),
    ("bundle", SENTENCE, ["--words", "fox,"], "argument --words: 'fox,' is not words with commas, as in its,law"),
    ("bundle", SENTENCE, ["--words", "fox,wolf"], "--words 'wolf': no such word; give one of the source's: The quick"),
    ("bundle", SENTENCE, ["--words", "fox", "--kind", "cross"], "--words 'fox': no such word; give one of the target"),
    ("bundle", SENTENCE, ["--target", " "], "--target is empty (' '): give at least one word"),
    ("bundle", SENTENCE, ["--target", "\udcff"], "--target is not UTF-8 text: '\\udcff'"),
    ("bundle", SENTENCE, ["--target", "dog " * 300], "pieces, but a picture holds at most 256: split it"),
    ("bundle", "", [], "the sentence is empty (''): give at least one word"),
    ("bundle", "\udcff", [], "the sentence is not UTF-8 text"),
    ("short_bundle", SENTENCE, [], "pieces, but the bundle takes at most 9: split it, or raise --max-input-tokens"),
    ("short_bundle", "A dog.", ["--target", LONG], "the model has positions (model.max_positions) for at most 23"),
    ("short_bundle", LONG, ["--max-input-tokens", "0"], "the model has positions (model.max_positions) for at most 23"),
])  # fmt: skip
def test_slips_are_named(
    model: str,
    sentence: str,
    options: list[str],
    message: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = [] if "--target" in options else ["--target", TARGET]
    out = str(tmp_path / "out")
    assert message in refused(capsys, str(request.getfixturevalue(model)), sentence, *target, *options, "--out", out)
    assert not list(tmp_path.iterdir())


def test_only_its_own_folder_is_replaced_and_only_when_asked(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = [str(bundle), SENTENCE, "--target", TARGET, "--out", str(out), "--kind", "encoder", "--heads", "1"]
    assert main(["attention", *command]) == 0
    page = (out / "attention.html").read_bytes()
    capsys.readouterr()
    assert "already exists: choose another --out, or replace it with --overwrite" in refused(capsys, *command)
    assert main(["attention", *command, "--overwrite", "--layer", "1"]) == 0
    assert (out / "attention.html").read_bytes() != page
    capsys.readouterr()
    (out / "notes.txt").write_text("mine")
    assert "holds notes.txt, which is not part of" in refused(capsys, *command, "--overwrite")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    command[5] = str(tmp_path / "full")
    assert "is not a folder of attention pictures and not empty" in refused(capsys, *command, "--overwrite")
    command[5] = str(bundle / "new")
    assert "which must not be changed" in refused(capsys, *command)
    assert names(tmp_path / "full") == {"mine"}


def test_a_model_with_nan_weights_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = save_tiny_bundle(tmp_path / "bundle", scale=float("nan"))
    command = [str(broken), SENTENCE, "--target", TARGET, "--out", str(tmp_path / "out")]
    assert "the model's attention has NaN for this sentence in float32; try another" in refused(capsys, *command)
    assert not (tmp_path / "out").exists()


def test_layers_are_those_of_the_side(uneven_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [str(uneven_bundle), SENTENCE, "--target", TARGET, "--out", str(tmp_path / "out")]
    message = refused(capsys, *command, "--layer", "2")
    assert (
        "--layer 2: the model has 1 layer in its decoder, numbered from 1: give 1, or --kind encoder for its 3"
        in message
    )
    assert main(["attention", *command]) == 0
    assert "12 pictures of the last layer of each side (3 + 1), heads" in capsys.readouterr().out
    assert "encoder self-attention, layer 3 of 3" in (tmp_path / "out" / "encoder-lines.svg").read_text()
    with np.load(tmp_path / "out" / WEIGHTS) as arrays:
        assert (len(arrays["encoder"]), len(arrays["decoder"]), len(arrays["cross"])) == (3, 1, 1)
