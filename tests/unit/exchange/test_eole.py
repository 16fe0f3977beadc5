"""``dst import eole``: what the weights say, what is refused, and eole's own results."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.data.corpora import TEXT, toy_sentences, train_model
from support.models.eole_models import EOLE, SPECIAL, ask_eole, eole_folder, eole_python, run_eole
from support.models.packed import model_logits
from support.models.random_bundle import random_bundle
from support.training.trained import trained_bundle

from dstransformer.cli.program import run as dst
from dstransformer.data import BOS_ID, EOS_ID, UNK_ID, Tokenizer
from dstransformer.decoding import Translator
from dstransformer.errors import DstError
from dstransformer.exchange.eole import import_eole
from dstransformer.exchange.eole_weights import ABSENT
from dstransformer.model import Bundle, open_bundle

WEIGHTS = "model.00.safetensors"

#: Variants that a bundle can hold.
VARIANTS: list[dict[str, Any]] = [
    {},
    {"activation": "swish", "attention_bias": True, "positions": "timing"},
    {"activation": "gelu", "num_layers": 3, "encoder_layers": 3, "decoder_layers": 1, "d_k": 4, "d_v": 4},
    {"tie_embeddings": "target", "norm_epsilon": 1e-6},
    {"tie_embeddings": "none", "positions": "timing"},
]


@torch.no_grad()
def log_probabilities(bundle: Bundle, src: list[str], tgt: list[str]) -> dict[str, torch.Tensor]:
    """Those of each piece at each position of a target and its end, by its name in eole."""
    sides = [tokenizer.pieces(range(tokenizer.vocab_size)) for tokenizer in (bundle.tokenizer.src, bundle.tokenizer)]
    ids = [{name: number for number, name in enumerate(names)} for names in sides]
    source = torch.tensor([*(ids[0].get(name, UNK_ID) for name in src), EOS_ID])
    target = torch.tensor([BOS_ID, *(ids[1].get(name, UNK_ID) for name in tgt)])
    found = model_logits(bundle.build_model(), [(source, target)])[:, : len(sides[1])].log_softmax(dim=-1)
    return {name.replace("<pad>", "<blank>"): found[:, number] for number, name in enumerate(sides[1])}


def text_pieces(bundle: Bundle, text: str, *, source: bool = False) -> list[str]:
    tokenizer = bundle.tokenizer.src if source else bundle.tokenizer
    return tokenizer.pieces(tokenizer.encode([text])[0])


@pytest.mark.parametrize("changes", VARIANTS)
def test_the_log_probabilities_are_those_of_the_weights(tmp_path: Path, changes: dict[str, Any]) -> None:
    ours = open_bundle(random_bundle(tmp_path / "ours", **(EOLE | changes)))
    folder = eole_folder(ours.path, tmp_path / "eole", filler=0)
    back = import_eole(folder, tmp_path / "back", src_lang="en", tgt_lang="de")
    assert (back.absent, back.bundle.src_lang, back.bundle.tgt_lang) == ([], "en", "de")
    assert back.bundle.model == ours.model.model_copy(update={"vocab_multiple": 1})
    pair = text_pieces(ours, TEXT[0], source=True), text_pieces(ours, TEXT[3])
    expected, found = (log_probabilities(bundle, *pair) for bundle in (ours, back.bundle))
    assert expected.keys() == found.keys()
    assert max(float((expected[name] - found[name]).abs().max()) for name in found) < 1e-4
    assert text_pieces(back.bundle, TEXT[0]) == text_pieces(ours, TEXT[0])


def test_each_side_may_have_its_own_vocabulary(tmp_path: Path) -> None:
    source = Tokenizer(train_model(TEXT[::2], vocab_size=290, model_type="unigram"))
    tokenizer = Tokenizer(train_model(TEXT[1::2]), src=source)
    ours = open_bundle(random_bundle(tmp_path / "ours", tokenizer, tie_embeddings="target", **EOLE))
    back = import_eole(eole_folder(ours.path, tmp_path / "eole", filler=0), tmp_path / "back").bundle
    pair = text_pieces(ours, TEXT[0], source=True), text_pieces(ours, TEXT[3])
    expected, found = (log_probabilities(bundle, *pair) for bundle in (ours, back))
    assert max(float((expected[name] - found[name]).abs().max()) for name in expected) < 1e-4
    assert text_pieces(back, TEXT[0], source=True) == pair[0]


def test_pieces_that_the_vocabulary_lacks_are_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = open_bundle(random_bundle(tmp_path / "ours", **EOLE))
    absent = text_pieces(ours, TEXT[0])[:2]
    folder = eole_folder(ours.path, tmp_path / "eole", without=absent)
    assert dst(["import", "eole", str(folder), "--out", str(tmp_path / "back")]) == 0
    assert "2 pieces of its SentencePiece models are not in its vocabulary" in capsys.readouterr().out
    back = open_bundle(tmp_path / "back")
    assert text_pieces(back, TEXT[0]) == text_pieces(ours, TEXT[0])
    weights, size = back.load_weights(), back.tokenizer.vocab_size
    assert set(back.tokenizer.pieces([size - 2, size - 1])) == set(absent)
    assert torch.equal(weights["embedding.weight"][size - 2], weights["embedding.weight"][UNK_ID])
    assert weights["output_bias"][size - 2 :].tolist() == [ABSENT] * 2


def test_projections_without_biases_have_zeros(tmp_path: Path) -> None:
    folder = eole_folder(random_bundle(tmp_path / "ours", **EOLE), tmp_path / "eole")
    change_weights(folder, lambda name: name == "generator.bias" or ("mlp" in name and name.endswith("bias")))
    weights = import_eole(folder, tmp_path / "back").bundle.load_weights()
    for name in ("encoder.0.feed_forward.inner.bias", "decoder.1.feed_forward.outer.bias", "output_bias"):
        assert not weights[name].any()


def test_the_search_is_that_of_eole(tmp_path: Path) -> None:
    folder = eole_folder(random_bundle(tmp_path / "ours", **EOLE), tmp_path / "eole")
    decoding = import_eole(folder, tmp_path / "one").bundle.decoding
    assert (decoding.beam_size, decoding.length_penalty, decoding.length_offset) == (5, 1.0, 0.0)
    content = json.loads((folder / "config.json").read_text())
    content["inference"] = {"beam_size": 2, "length_penalty": "wu", "alpha": 0.6}
    (folder / "config.json").write_text(json.dumps(content))
    decoding = import_eole(folder, tmp_path / "two").bundle.decoding
    assert (decoding.beam_size, decoding.length_penalty, decoding.length_offset) == (2, 0.6, 5.0)


def restate(folder: Path, part: str | None = None, **changes: Any) -> None:
    """Change the architecture that a folder states, or a part of it."""
    content = json.loads((folder / "config.json").read_text())
    (content["model"] if part is None else content["model"][part]).update(changes)
    (folder / "config.json").write_text(json.dumps(content))


def retransform(folder: Path, *names: str, **options: Any) -> None:
    content = json.loads((folder / "config.json").read_text())
    content["transforms"] += names
    content["transforms_configs"]["sentencepiece"].update(options)
    (folder / "config.json").write_text(json.dumps(content))


def revocabulary(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(content | changes))


def change_weights(folder: Path, drops: Any, **changes: torch.Tensor) -> None:
    weights = {name: weight for name, weight in load_file(folder / WEIGHTS).items() if not drops(name)}
    save_file(weights | changes, folder / WEIGHTS)


def keep(_: str) -> bool:
    return False


def pickle(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model.pt")


def longer(folder: Path) -> None:
    tokens = json.loads((folder / "vocab.json").read_text())["src"]
    revocabulary(folder, src=[*tokens, "new"], tgt=[*tokens, "new"])


def other_pieces(folder: Path) -> None:
    tokens = json.loads((folder / "vocab.json").read_text())["src"]
    tokens = [*tokens[:4], *(f"#{number}" for number in range(len(tokens) - 4))]
    revocabulary(folder, src=tokens, tgt=tokens)


EMBEDDINGS = "src_emb.embeddings.weight"
INNER = "encoder.transformer_layers.1.mlp.gate_up_proj.weight"


@pytest.mark.parametrize(("change", "message"), [
    (lambda folder: (folder / "config.json").unlink(), "has no config.json: it is not the folder of a model of eole"),
    (lambda folder: (folder / WEIGHTS).unlink(), f"has no {WEIGHTS}"),
    (pickle, f"has no {WEIGHTS}; model.pt is a pickle, which may execute anything when it is read"),
    (lambda folder: (folder / "config.json").write_text("{"), "config.json is damaged"),
    (lambda folder: (folder / WEIGHTS).write_bytes(b"no"), "is not a safetensors file"),
    (lambda folder: (folder / "spm.model").write_bytes(b"no"), "spm.model is not a SentencePiece model"),
    (lambda folder: (folder / "spm.model").unlink(), "has no spm.model: give the SentencePiece model with --sentence"),
    (lambda folder: retransform(folder, src_subword_model=None), "names no SentencePiece model (src_subword_model)"),
    (lambda folder: retransform(folder, "prefix"), "the transform 'prefix' changes text"),
    (lambda folder: restate(folder, architecture="transformer_lm", encoder=None), "architecture is 'transformer_lm'"),
    (lambda folder: restate(folder, architecture="custom", decoder=None), "architecture is 'transformer and custom'"),
    (lambda folder: restate(folder, "embeddings", position_encoding_type="Rotary"), "encoding_type is 'Rotary'"),
    (lambda folder: restate(folder, layer_norm="rms"), "layer_norm is 'rms', and a bundle cannot hold that"),
    (lambda folder: restate(folder, mlp_activation_fn="gated-silu"), "mlp_activation_fn is 'gated-silu'"),
    (lambda folder: restate(folder, "encoder", encoder_layer_style="postnorm"), "encoder_layer_style is 'postnorm'"),
    (lambda folder: restate(folder, heads_kv=2), "heads_kv is not the number of heads, 4"),
    (lambda folder: restate(folder, "encoder", heads=2), "heads is 2 in the encoder and 4 in the decoder"),
    (lambda folder: restate(folder, hidden_size="x"), "hidden_size is 'x', not a number from 1 on"),
    (lambda folder: restate(folder, transformer_ff=64), "inner.weight is 48 x 32 and should be 64 x 32"),
    (lambda folder: restate(folder, "encoder", layers=3), "has no weight encoder.transformer_layers.2.self_attn"),
    (lambda folder: change_weights(folder, INNER.__eq__), f"has no weight {INNER}: it does not fit config.json"),
    (lambda folder: change_weights(folder, keep, estimator=torch.ones(1)), "a weight estimator, and a bundle cannot"),
    (lambda folder: change_weights(folder, keep, **{INNER: torch.ones(4, dtype=torch.int8)}), "before it was quanti"),
    (lambda folder: change_weights(folder, keep, **{"src_emb.pe.pe": torch.randn(50, 1, 32)}), "weight src_emb.pe.pe"),
    (longer, "src_emb.embeddings.weight has 342 rows, and vocab.json 343 pieces"),
    (other_pieces, "vocab.json has 338 pieces, of which "),
    (lambda folder: revocabulary(folder, src=["<unk>", "a", "a"]), "src has the piece 'a' twice"),
    (lambda folder: revocabulary(folder, decoder_start_token="<2de>"), "decoder_start_token is '<2de>', which is not"),
    (lambda folder: change_weights(folder, keep, **{EMBEDDINGS: torch.tensor(1.0)}), "does not fit config.json"),
    (lambda folder: revocabulary(folder, specials=SPECIAL | {"pad_token": []}), "pad_token is [], which is not"),
])  # fmt: skip
def test_what_cannot_be_imported_is_refused_in_one_line(tmp_path: Path, change: Any, message: str) -> None:
    folder = eole_folder(random_bundle(tmp_path / "ours", **EOLE), tmp_path / "eole")
    change(folder)
    with pytest.raises(DstError) as caught:
        import_eole(folder, tmp_path / "back")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eole", "ours"]


def test_the_command_takes_sentencepiece_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = eole_folder(random_bundle(tmp_path / "ours", **EOLE), tmp_path / "eole")
    (folder / "spm.model").rename(tmp_path / "other.model")
    command = ["import", "eole", str(folder), "--out", str(tmp_path / "back")]
    assert dst(command) == 2
    assert dst([*command, "--sentencepiece", *["x"] * 3]) == 2
    assert "--sentencepiece names 3 files" in capsys.readouterr().err
    assert dst([*command, "--sentencepiece", str(tmp_path / "other.model"), "--src-lang", "en"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'back'}: en to unknown, 342 pieces\n"
    assert dst(["import", "eole", str(tmp_path / "model.pt"), "--out", str(tmp_path / "x")]) == 2
    assert "model.pt is a pickle" in capsys.readouterr().err
    assert len(Translator.load(tmp_path / "back").translate(TEXT[::2])) == 2


def compare(bundle: Bundle, folder: Path, pairs: list[tuple[str, str]], work: Path) -> float:
    """The largest difference of log-probabilities of pairs from eole's; translations are compared too, without a beam.

    Outputs that reach eole's limit are not compared.
    """
    texts = [(text_pieces(bundle, src, source=True), text_pieces(bundle, tgt)) for src, tgt in pairs[:20]]
    lines = [src for src, _ in pairs]
    answer = ask_eole(folder, texts, lines, work)
    names = json.loads((folder / "vocab.json").read_text())["tgt"]
    worst = 0.0
    for (src, tgt), expected in zip(texts, answer["log_probs"], strict=True):
        found = log_probabilities(bundle, src, tgt)
        theirs = torch.tensor(expected)[: len(tgt) + 1]
        shared = [name for name in names if name in found]
        assert len(shared) >= len(names) - 1
        worst = max(worst, *(float((found[name] - theirs[:, names.index(name)]).abs().max()) for name in shared))
    settings = bundle.decoding.model_copy(update={"beam_size": 1, "length_penalty": 0.0, "max_extra_tokens": 100})
    translator = Translator.load(bundle.path, settings=settings)
    outputs = [hypotheses[0].tokens for hypotheses in translator.search(lines)]
    ended = [number for number, tokens in enumerate(outputs) if len(tokens) < 99]
    ours = bundle.tokenizer.decode(outputs)
    equal = [number for number in ended if ours[number] == answer["translations"][number][0]]
    assert len(equal) >= 0.99 * len(ended)
    print(f"{folder}: {worst:.1e}, {len(equal)} of {len(ended)} translations are equal")
    return worst


def sentence_pairs(corpus: Path, count: int) -> list[tuple[str, str]]:
    sides = [toy_sentences(corpus, 600, side) for side in ("src", "tgt")]
    joined = [[*one, *(f"{first} {second}" for first, second in pairwise(one))] for one in sides]
    return list(zip(*joined, strict=True))[:count]


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize("changes", VARIANTS)
def test_eole_computes_the_same(tmp_path: Path, toy_corpus: Path, changes: dict[str, Any]) -> None:
    eole_python()
    heads = {"d_k": 16, "d_v": 16} if "d_k" in changes else {}
    ours = trained_bundle(tmp_path / "ours", toy_corpus, updates=150, vocab_multiple=1, **(EOLE | changes | heads))
    folder = eole_folder(ours, tmp_path / "eole")
    back = import_eole(folder, tmp_path / "back").bundle
    assert compare(back, folder, sentence_pairs(toy_corpus, 200), tmp_path) < 1e-4


@pytest.mark.slow
@pytest.mark.extended
def test_a_model_that_eole_trained(tmp_path: Path, toy_corpus: Path) -> None:
    """Its vocabulary lacks every tenth piece."""
    eole_python()
    tokenizer = Tokenizer(train_model())
    tokenizer.save(tmp_path / "pieces.model")
    pieces = tokenizer.pieces(range(4, tokenizer.vocab_size))
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\t9\n" for n, piece in enumerate(pieces) if n % 10))
    pairs = sentence_pairs(toy_corpus, 300)
    for name, lines in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    config = {
        "data": {"one": {"path_src": "src", "path_tgt": "tgt"}},
        "transforms": ["sentencepiece"],
        "transforms_configs": {
            "sentencepiece": {"src_subword_model": "pieces.model", "tgt_subword_model": "pieces.model"}
        },
        "src_vocab": "vocab.txt", "tgt_vocab": "vocab.txt", "share_vocab": True, "seed": 1,
        "training": {
            "model_path": "model", "world_size": 1, "gpu_ranks": [], "num_workers": 0, "bucket_size": 300,
            "batch_type": "sents", "batch_size": 10, "train_steps": 300, "save_checkpoint_steps": 300,
            "valid_steps": 1000, "optim": "adam", "learning_rate": 0.003, "compute_dtype": "fp32", "use_amp": False,
            "param_init_method": "xavier_uniform",
        },
        "model": {
            "architecture": "transformer", "layers": 2, "hidden_size": 64, "heads": 4, "transformer_ff": 128,
            "share_embeddings": True, "share_decoder_embeddings": True,
            "embeddings": {"word_vec_size": 64, "position_encoding": True},
        },
    }  # fmt: skip
    (tmp_path / "train.yaml").write_text(json.dumps(config))
    run_eole("-c", "from eole.bin.main import main; main()", "train", "-config", "train.yaml", cwd=tmp_path)
    imported = import_eole(tmp_path / "model", tmp_path / "bundle")
    assert len(imported.absent) == len(range(0, len(pieces), 10))
    assert compare(imported.bundle, tmp_path / "model", pairs[:100], tmp_path) < 1e-4
