"""``dst import hf`` against transformers: the same tokens, the same logits, the same translations, there and back."""

from __future__ import annotations

import gzip
import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.data.corpora import TEXT, toy_sentences, train_model
from support.models.opus import as_marian, opus_folder
from support.models.packed import model_logits
from support.models.random_bundle import random_bundle
from transformers import MarianMTModel, MarianTokenizer

from dstransformer.data import BOS_ID, EOS_ID, Tokenizer
from dstransformer.decoding import Translator
from dstransformer.errors import DataError, DstError
from dstransformer.exchange.hf_export import export_hf
from dstransformer.exchange.hf_import import import_hf
from dstransformer.model import Bundle, open_bundle

MULTI30K = Path(os.environ.get("DST_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data")) / "multi30k"


def rows(tokenizer: Tokenizer, vocabulary: Path) -> tuple[list[int], list[int]]:
    """The ids of the pieces that a vocabulary has, and their numbers there."""
    numbers = json.loads(vocabulary.read_text())
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    names = [piece.removeprefix("▁") if piece in tokenizer.symbols else piece for piece in pieces]
    shared = [(number, numbers[name]) for number, name in enumerate(names) if name in numbers and number]
    ours, theirs = zip(*shared, strict=True)
    return list(ours), list(theirs)


@torch.no_grad()
def differences(bundle: Bundle, folder: Path, src: str, tgt: str) -> tuple[float, float]:
    """The largest differences of logits and of log-probabilities."""
    theirs = MarianMTModel.from_pretrained(folder).eval()
    tokens = MarianTokenizer.from_pretrained(folder)([src], text_target=[tgt])
    start = theirs.config.decoder_start_token_id
    expected = theirs(
        input_ids=torch.tensor(tokens["input_ids"]),
        decoder_input_ids=torch.tensor([[start, *tokens["labels"][0][:-1]]]),
    ).logits[0]
    source = torch.tensor([*bundle.tokenizer.src.encode([src])[0], EOS_ID])
    target = torch.tensor([BOS_ID, *bundle.tokenizer.encode([tgt])[0]])
    found = model_logits(bundle.build_model(), [(source, target)])
    separate = (folder / "target_vocab.json").exists()
    ours, others = rows(bundle.tokenizer, folder / ("target_vocab.json" if separate else "vocab.json"))
    assert len(ours) >= expected.shape[1] - 1
    of_logits = (found[:, ours] - expected[:, others]).abs().max().item()
    both = [one.log_softmax(dim=-1) for one in (found, expected)]
    return of_logits, (both[0][:, ours] - both[1][:, others]).abs().max().item()


#: Differences of published models: ReLU, depths, embeddings of their own.
ARCHITECTURES: list[dict[str, Any]] = [
    {},
    {"activation_function": "relu", "encoder_layers": 3, "decoder_layers": 1},
    {"activation_function": "gelu", "decoder_layers": 3},
    {"tie_word_embeddings": False},
    {"share_encoder_decoder_embeddings": False},
    {"separate": True},
    {"separate": True, "tie_word_embeddings": False, "decoder_layers": 1},
]


@pytest.mark.parametrize("changes", ARCHITECTURES)
def test_the_logits_are_the_same_there_and_back(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = opus_folder(tmp_path / "opus", tags=[">>deu<<", ">>nld<<"], **changes)
    bundle = import_hf(folder, tmp_path / "bundle")[0]
    src, tgt = f">>nld<< {TEXT[0]}", TEXT[1]
    assert max(differences(bundle, folder, src, tgt)) < 1e-4
    export_hf(tmp_path / "bundle", tmp_path / "back")
    assert max(differences(bundle, tmp_path / "back", src, tgt)) < 1e-4
    again = import_hf(tmp_path / "back", tmp_path / "again")[0]
    assert again.tokenizer.identity == bundle.tokenizer.identity
    assert (again.model, again.decoding) == (bundle.model, bundle.decoding)
    assert max(differences(again, folder, src, tgt)) < 1e-4


#: The form in which Marian holds a model: its weights come back bit for bit.
MARIAN_FORM: dict[str, Any] = {
    "norm_epsilon": 1e-5, "attention_bias": True, "output_bias": True, "vocab_multiple": 1,
}  # fmt: skip


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("form", [MARIAN_FORM, {}])
def test_an_export_with_fast_tokenizers_comes_back(tmp_path: Path, form: dict[str, Any], *, joint: bool) -> None:
    source = Tokenizer(train_model(TEXT[::2], vocab_size=290, model_type="unigram"))
    tokenizer = None if joint else Tokenizer(train_model(TEXT[1::2]), src=source)
    tie = "all" if joint else "target"
    ours = open_bundle(random_bundle(tmp_path / "bundle", tokenizer, tie_embeddings=tie, **form))
    export_hf(ours.path, tmp_path / "hf")
    back, absent = import_hf(tmp_path / "hf", tmp_path / "back")
    assert (back.tokenizer.identity, back.tokenizer.is_joint, absent) == (ours.tokenizer.identity, joint, [])
    names = ["tokenizer.model"] if joint else ["tokenizer.model", "tokenizer.src.model"]
    assert [(back.path / name).read_bytes() for name in names] == [(ours.path / name).read_bytes() for name in names]
    assert (back.src_lang, back.tgt_lang) == (ours.src_lang, ours.tgt_lang) != (None, None)
    pieces = torch.tensor([*back.tokenizer.src.encode([TEXT[0]])[0], EOS_ID])
    outputs = torch.tensor([BOS_ID, *back.tokenizer.encode([TEXT[3]])[0]])
    with torch.no_grad():
        logits = [model_logits(one.build_model(), [(pieces, outputs)]) for one in (ours, back)]
    assert (logits[0][:, : back.tokenizer.vocab_size] - logits[1]).abs().max() < 1e-4
    export_hf(back.path, tmp_path / "again")
    assert (tmp_path / "again" / "source.spm").read_bytes() == (tmp_path / "hf" / "source.spm").read_bytes()
    if form:
        weights = ours.load_weights()
        returned = back.load_weights()
        assert weights.keys() == returned.keys()
        assert all(weight.equal(returned[name]) for name, weight in weights.items())


def test_an_earlier_export_without_its_models_is_refused_with_advice(tmp_path: Path) -> None:
    export_hf(random_bundle(tmp_path / "bundle"), tmp_path / "hf")
    (tmp_path / "hf" / "source.spm").unlink()
    with pytest.raises(DataError, match="SentencePiece models"):
        import_hf(tmp_path / "hf", tmp_path / "back")


def test_a_model_states_its_languages_and_its_search(tmp_path: Path) -> None:
    one = import_hf(opus_folder(tmp_path / "one"), tmp_path / "bundle")[0]
    assert (one.src_lang, one.tgt_lang, one.directions) == ("eng", "deu", ())
    assert (one.decoding.beam_size, one.decoding.length_penalty, one.decoding.length_offset) == (4, 1.0, 0.0)
    assert one.decoding.max_input_tokens == 127
    assert one.provenance["imported"]["format"] == "MarianMTModel"
    several = opus_folder(tmp_path / "several", tags=[">>deu<<", ">>nld<<"])
    bundle = import_hf(several, tmp_path / "tags")[0]
    assert [(one.name, one.tag) for one in bundle.directions] == [("eng-deu", ">>deu<<"), ("eng-nld", ">>nld<<")]
    assert bundle.tgt_lang == "mul"


def corpus(side: str, lines: int) -> list[str]:
    if not MULTI30K.is_dir():
        pytest.skip(f"no {MULTI30K}; set DST_SHARED_DATA")
    with gzip.open(MULTI30K / f"train.{side}.gz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in islice(file, lines)]


@pytest.mark.slow
@pytest.mark.parametrize("separate", [False, True])
def test_the_tokens_of_real_text_are_the_same(tmp_path: Path, *, separate: bool) -> None:
    texts = [[line for line in corpus(side, 10_100) if line.isprintable()][:10_000] for side in ("en", "de")]
    folder = opus_folder(tmp_path / "opus", (texts[0], texts[1]), pieces=2_000, separate=separate)
    bundle = import_hf(folder, tmp_path / "bundle")[0]
    theirs = MarianTokenizer.from_pretrained(folder)
    found = theirs(texts[0], text_target=texts[1])
    target_vocabulary = "target_vocab.json" if separate else "vocab.json"
    for tokenizer, vocabulary, ids, lines in zip(
        (bundle.tokenizer.src, bundle.tokenizer),
        ("vocab.json", target_vocabulary),
        (found["input_ids"], found["labels"]),
        texts,
        strict=True,
    ):
        number = dict(zip(*reversed(rows(tokenizer, folder / vocabulary)), strict=True))
        expected = [[number[one] for one in row] for row in ids]
        assert [[*row, EOS_ID] for row in tokenizer.encode(lines)] == expected
        assert tokenizer.decode(tokenizer.encode(lines[:100])) == lines[:100]


@pytest.mark.slow
@pytest.mark.parametrize("separate", [False, True])
def test_translations_are_those_of_generate(trained: Path, toy_corpus: Path, tmp_path: Path, *, separate: bool) -> None:
    folder = as_marian(trained, tmp_path / "marian", separate=separate)
    texts = toy_sentences(toy_corpus, 100)
    import_hf(folder, tmp_path / "bundle", src_lang="en", tgt_lang="de")
    found = Translator.load(tmp_path / "bundle").translate(texts)
    model, tokenizer = MarianMTModel.from_pretrained(folder).eval(), MarianTokenizer.from_pretrained(folder)
    settings = open_bundle(tmp_path / "bundle").decoding
    expected = []
    for begin in range(0, len(texts), 50):
        inputs = tokenizer(texts[begin : begin + 50], return_tensors="pt", padding=True)
        with torch.inference_mode():
            outputs = model.generate(**inputs, num_beams=settings.beam_size, length_penalty=settings.length_penalty)
        expected += tokenizer.batch_decode(outputs, skip_special_tokens=True)
    same = sum(map(str.__eq__, found, expected))
    assert same >= 0.99 * len(texts), [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]][:5]
    assert len(set(found)) > 0.5 * len(texts)


def damage(folder: Path, name: str, **changes: Any) -> None:
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**content, **changes}))


def separate(folder: Path, target: str) -> None:
    damage(folder, "tokenizer_config.json", separate_vocabs=True)
    (folder / "target_vocab.json").write_text((folder / target).read_text())


def remove(folder: Path, name: str) -> None:
    (folder / name).unlink()


def cut(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.encoder.layers.0.fc1.weight"] = weights["model.encoder.layers.0.fc1.weight"][:-1].clone()
    save_file(weights, folder / "model.safetensors")


def learn_positions(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.encoder.embed_positions.weight"] = torch.randn(128, 32)
    save_file(weights, folder / "model.safetensors")


def pickle(folder: Path, content: Any = None, *, legacy: bool = False) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(content or weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)


class Harmful:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("harmed"),)


@pytest.mark.parametrize("legacy", [False, True])
def test_weights_in_a_pickle_are_those_of_safetensors(tmp_path: Path, legacy: bool) -> None:
    folder = opus_folder(tmp_path / "opus")
    expected = import_hf(folder, tmp_path / "expected")[0]
    pickle(folder, legacy=legacy)
    found = import_hf(folder, tmp_path / "found")[0]
    assert (found.path / "model.safetensors").read_bytes() == (expected.path / "model.safetensors").read_bytes()


def test_a_pickle_that_does_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = opus_folder(tmp_path / "opus")
    pickle(folder, {"model.shared.weight": Harmful()})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"pytorch_model.bin"):
        import_hf(folder, tmp_path / "bundle")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(("change", "message"), [
    (lambda folder: remove(folder, "vocab.json"), "has no vocab.json: it is not the folder of a MarianMTModel with"),
    (lambda folder: remove(folder, "source.spm"), "has no source.spm"),
    (lambda folder: damage(folder, "tokenizer_config.json", separate_vocabs=True), "has no target_vocab.json"),
    (lambda folder: separate(folder, "vocab.json"), "share_encoder_decoder_embeddings is True, but each side has"),
    (lambda folder: pickle(folder, [1]), "pytorch_model.bin does not hold weights by their names"),
    (lambda folder: (pickle(folder), (folder / "pytorch_model.bin").write_bytes(b"no")), "weights and nothing else"),
    (lambda folder: damage(folder, "config.json", model_type="mbart", architectures=["MBart"]), "is of 'MBart': only"),
    (lambda folder: damage(folder, "config.json", decoder_ffn_dim=64), "encoder_ffn_dim is 48 and decoder_ffn_dim 64"),
    (lambda folder: damage(folder, "config.json", normalize_before=True), "normalize_before is True, and a bundle"),
    (lambda folder: damage(folder, "config.json", activation_function="tanh"), "activation_function is 'tanh'"),
    (lambda folder: damage(folder, "config.json", d_model="32"), "d_model is '32', not a number from 1 on"),
    (lambda folder: damage(folder, "config.json", encoder_layers=3), "has no weight model.encoder.layers.2.self_attn"),
    (lambda folder: damage(folder, "vocab.json", word=58), "has 59 pieces, and the model 58 (config.json)"),
    (lambda folder: damage(folder, "vocab.json", **{"<unk>": 0}), "are not 0 to 57"),
    (lambda folder: (folder / "target.spm").write_bytes(b"no model"), "target.spm is not a SentencePiece model"),
    (lambda folder: (folder / "model.safetensors").write_bytes(b"no"), "model.safetensors is not a safetensors file"),
    (cut, "does not fit config.json: encoder.0.feed_forward.inner.weight is 47 x 32 and should be 48 x 32"),
    (learn_positions, "the positions of the encoder are not sinusoids"),
])  # fmt: skip
def test_what_cannot_be_imported_is_refused_in_one_line(tmp_path: Path, change: Any, message: str) -> None:
    folder = opus_folder(tmp_path / "opus")
    change(folder)
    with pytest.raises(DstError) as caught:
        import_hf(folder, tmp_path / "bundle")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["opus"]


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    folder = opus_folder(tmp_path / "opus")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="mine"):
        import_hf(folder, tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"
