"""``dst import marian`` and ``dst export marian``: the same model there and back, and with Marian itself."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.data.corpora import TEXT, toy_sentences, train_model
from support.models.packed import model_logits
from support.models.random_bundle import random_bundle
from support.processes.environments import side_python
from support.training.trained import trained_bundle

from dstransformer.cli.program import run as dst
from dstransformer.config import DecodingConfig
from dstransformer.data import BOS_ID, EOS_ID, PAD_ID, Tokenizer
from dstransformer.decoding import Translator
from dstransformer.errors import DstError
from dstransformer.evaluation.bleu import score
from dstransformer.exchange.marian_import import import_marian
from dstransformer.exchange.marian_npz import CONFIG, export_marian
from dstransformer.exchange.shortlist import ShortlistOptions
from dstransformer.model import Bundle, open_bundle

#: What Marian's models have.
MARIAN: dict[str, Any] = {"positions": "timing", "start": "zeros"}


@torch.no_grad()
def logits(bundle: Bundle) -> torch.Tensor:
    source = torch.tensor([*bundle.tokenizer.src.encode([TEXT[0]])[0], EOS_ID])
    target = torch.tensor([BOS_ID, *bundle.tokenizer.encode([TEXT[3]])[0]])
    found = model_logits(bundle.build_model(), [(source, target)])
    pieces = [number for number in range(bundle.tokenizer.vocab_size) if number not in (PAD_ID, BOS_ID)]
    return found[:, pieces]


@pytest.mark.parametrize("changes", [
    {},
    {"activation": "swish", "attention_bias": True, "output_bias": True},
    {"encoder_layers": 3, "decoder_layers": 1, "d_k": 4, "d_v": 6},
    {"tie_embeddings": "target"},
    {"tie_embeddings": "none", "norm_epsilon": 1e-5},
])  # fmt: skip
def test_a_model_has_the_same_logits_there_and_back(tmp_path: Path, changes: dict[str, Any]) -> None:
    ours = open_bundle(random_bundle(tmp_path / "bundle", **MARIAN, **changes))
    export_marian(ours.path, tmp_path / "marian")
    vocabulary = tmp_path / "marian" / "vocab.spm"
    back = import_marian(tmp_path / "marian" / "model.npz", [vocabulary, vocabulary], tmp_path / "back")
    assert (logits(ours) - logits(back)).abs().max() < 1e-4
    assert back.tokenizer.identity == ours.tokenizer.identity
    export_marian(back.path, tmp_path / "again")
    with np.load(tmp_path / "marian" / "model.npz") as first, np.load(tmp_path / "again" / "model.npz") as second:
        assert set(first.files) == set(second.files)
        for name in first.files:
            if name != CONFIG and "Wemb" not in name and "logit_out" not in name:  # those have rows of special pieces
                np.testing.assert_array_equal(first[name], second[name])


def test_each_side_may_have_its_own_vocabulary(tmp_path: Path) -> None:
    source = Tokenizer(train_model(TEXT[::2], vocab_size=290, model_type="unigram"))
    tokenizer = Tokenizer(train_model(TEXT[1::2]), src=source)
    ours = open_bundle(random_bundle(tmp_path / "bundle", tokenizer, tie_embeddings="target", **MARIAN))
    export_marian(ours.path, tmp_path / "marian")
    vocabularies = [tmp_path / "marian" / f"vocab.{side}.spm" for side in ("src", "tgt")]
    back = import_marian(tmp_path / "marian" / "model.npz", vocabularies, tmp_path / "back")
    assert (logits(ours) - logits(back)).abs().max() < 1e-4
    assert back.tokenizer.identity == tokenizer.identity


def restate(path: Path, **changes: Any) -> None:
    """Change the configuration in a model of Marian."""
    with np.load(path) as arrays:
        content = dict(arrays)
    stated = yaml.safe_load(bytes(content[CONFIG]).rstrip(b"\0")) | changes
    content[CONFIG] = np.frombuffer(yaml.safe_dump(stated).encode(), dtype=np.int8)
    np.savez(path, **content)


def without(path: Path, name: str) -> None:
    with np.load(path) as arrays:
        content = {key: arrays[key] for key in arrays.files if key != name}
    np.savez(path, **content)


def pickled(path: Path) -> None:
    with np.load(path) as arrays:
        content = {key: arrays[key] for key in arrays.files}
    content["Wemb"] = np.array([{"a": 1}], dtype=object)
    np.savez(path, **content)


@pytest.mark.parametrize(("change", "message"), [
    (lambda path: path.write_bytes(b"no"), "is not an .npz file of Marian"),
    (lambda path: without(path, CONFIG), "has no configuration (special:model.yml)"),
    (lambda path: without(path, "encoder_l2_ffn_b1"), "has no array encoder_l2_ffn_b1"),
    (pickled, "is not an .npz file of Marian"),
    (lambda path: restate(path, **{"type": "s2s"}), "type is 's2s', and a bundle has 'transformer'"),
    (lambda path: restate(path, **{"transformer-preprocess": "n"}), "transformer-preprocess is 'n'"),
    (lambda path: restate(path, **{"transformer-decoder-autoreg": "rnn"}), "transformer-decoder-autoreg is 'rnn'"),
    (lambda path: restate(path, **{"transformer-tied-layers": [1, 1]}), "transformer-tied-layers is [1, 1]"),
    (lambda path: restate(path, **{"transformer-unheard": True}), "transformer-unheard is True"),
    (lambda path: restate(path, **{"transformer-dim-ffn": 64}), "does not fit its own configuration"),
    (lambda path: restate(path, **{"dim-emb": "x"}), "dim-emb is 'x', not a number from 1 on"),
])  # fmt: skip
def test_what_cannot_be_imported_is_refused_in_one_line(tmp_path: Path, change: Any, message: str) -> None:
    export_marian(random_bundle(tmp_path / "bundle", **MARIAN), tmp_path / "marian")
    model, vocabulary = tmp_path / "marian" / "model.npz", tmp_path / "marian" / "vocab.spm"
    change(model)
    with pytest.raises(DstError) as caught:
        import_marian(model, [vocabulary, vocabulary], tmp_path / "back")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "back").exists()


def test_what_is_off_and_what_other_types_have_is_ignored(tmp_path: Path) -> None:
    export_marian(random_bundle(tmp_path / "bundle", **MARIAN), tmp_path / "marian")
    model, vocabulary = tmp_path / "marian" / "model.npz", tmp_path / "marian" / "vocab.spm"
    restate(model, **{"transformer-unheard": False, "ulr": None, "enc-cell": "gru", "bert-type-vocab-size": 2})
    back = import_marian(model, [vocabulary, vocabulary], tmp_path / "back")
    assert back.model.positions == "timing"


def test_a_vocabulary_of_another_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export_marian(random_bundle(tmp_path / "bundle", **MARIAN), tmp_path / "marian")
    other = tmp_path / "other.spm"
    other.write_bytes(train_model(vocab_size=330))
    expected = {
        other: "has embeddings of 340 source pieces, and the vocabulary 330",
        tmp_path / "vocab.yml": "vocab.yml numbers pieces, but does not divide text",
    }
    for vocabulary, message in expected.items():
        options = ["--vocabs", str(vocabulary), "--out", str(tmp_path / "back")]
        assert dst(["import", "marian", str(tmp_path / "marian" / "model.npz"), *options]) == 2
        assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def lines(toy_corpus: Path) -> list[str]:
    """1,000 sentences."""
    one = toy_sentences(toy_corpus, 600)
    return [*one, *(f"{first} {second}" for first, second in pairwise(one))][:1000]


def marian_python() -> Path:
    """The Python that has pymarian; skips the test without one."""
    return side_python("marian", "pymarian")


def marian(*arguments: str | Path, cwd: Path) -> str:
    """Run Marian, and return what it prints."""
    command = [str(marian_python()), "-m", "pymarian", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def decode(lines: Sequence[str], folder: Path, *options: str) -> tuple[list[str], list[float]]:
    """Marian's translations of lines, and their log-probabilities."""
    (folder / "input").write_text("\n".join(lines) + "\n", encoding="utf-8")
    search = ["--n-best", "--max-length", "200", "--cpu-threads", "1", "--quiet", "-w", "300"]
    printed = marian("decode", "-i", "input", *search, *options, cwd=folder)
    texts, scores = [""] * len(lines), [0.0] * len(lines)
    seen = set()
    for line in printed.splitlines():
        number, text, score, _ = (part.strip() for part in line.split("|||"))
        if number not in seen:  # the best one comes first
            seen.add(number)
            texts[int(number)], scores[int(number)] = text, float(score.removeprefix("F0="))
    assert len(seen) == len(lines)
    return texts, scores


#: Without a beam, in which the two searches keep finished hypotheses differently.
EXTRA = 60
GREEDY = ("--beam-size", "1", "--normalize", "0", "--max-length-factor", "4")


def greedy(bundle: Bundle) -> DecodingConfig:
    return bundle.decoding.model_copy(update={"beam_size": 1, "length_penalty": 0.0, "max_extra_tokens": EXTRA})


def compare(bundle: Path, lines: list[str], texts: list[str], scores: list[float]) -> None:
    """Compare Marian's translations with ours, of lines whose output ends by itself: the limits are not the same."""
    ours = Translator.load(bundle, settings=greedy(open_bundle(bundle)))
    found = [hypotheses[0] for hypotheses in ours.search(lines)]
    sources = map(len, ours.tokenizer.src.encode(lines))
    limits = [min(4 * source, source + EXTRA) for source in sources]
    ended = [number for number, (one, limit) in enumerate(zip(found, limits, strict=True)) if len(one.tokens) < limit]
    expected = ours.tokenizer.decode([one.tokens for one in found])
    equal = [number for number in ended if texts[number] == expected[number]]
    assert len(ended) >= 0.9 * len(lines)
    assert len(equal) >= 0.99 * len(ended)
    differences = [abs(found[number].log_probability - scores[number]) for number in equal]
    assert np.quantile(differences, 0.99) < 1e-3  # one text may have two spellings in pieces
    assert len(set(texts)) > len(lines) // 2


@pytest.mark.slow
@pytest.mark.extended
def test_marian_translates_as_we_do_with_our_model(tmp_path: Path, toy_corpus: Path, lines: list[str]) -> None:
    marian_python()
    bundle = trained_bundle(tmp_path / "bundle", toy_corpus, updates=150, vocab_multiple=1, **MARIAN)
    export_marian(bundle, tmp_path / "marian")
    decoder = str(tmp_path / "marian" / "decoder.yml")
    compare(bundle, lines, *decode(lines, tmp_path, "-c", decoder, *GREEDY))


@pytest.mark.slow
@pytest.mark.extended
def test_marian_takes_8_bit_weights_and_our_shortlist(tmp_path: Path, toy_corpus: Path, lines: list[str]) -> None:
    """Bergamot's form: intgemm8, with a lexical shortlist."""
    marian_python()
    bundle = trained_bundle(tmp_path / "bundle", toy_corpus, updates=150, vocab_multiple=1, **MARIAN)
    export_marian(bundle, tmp_path / "plain")
    export_marian(bundle, tmp_path / "short", shortlist=ShortlistOptions(toy_corpus, 50, 50))
    packed = tmp_path / "short" / "model.bin"
    marian("convert", "-f", tmp_path / "short" / "model.npz", "-t", packed, "-g", "intgemm8", cwd=tmp_path)
    assert packed.stat().st_size < 0.6 * (tmp_path / "short" / "model.npz").stat().st_size
    full, _ = decode(lines[:300], tmp_path, "-c", str(tmp_path / "plain" / "decoder.yml"), *GREEDY)
    model = ("-c", str(tmp_path / "short" / "decoder.yml"), "-m", str(packed))
    small, _ = decode(lines[:300], tmp_path, *model, *GREEDY)
    assert full != small
    assert score(small, full)[0].value > 40  # of a model that is not finished


@pytest.mark.slow
@pytest.mark.extended
def test_we_translate_as_marian_does_with_its_model(tmp_path: Path, toy_corpus: Path, lines: list[str]) -> None:
    marian_python()
    for side, name in (("src", "en"), ("tgt", "de")):
        (tmp_path / name).write_text("\n".join(toy_sentences(toy_corpus, 600, side)) + "\n")
    options = {
        "type": "transformer", "model": "model.npz", "train-sets": "en de", "vocabs": "vocab.spm vocab.spm",
        "dim-vocabs": "400 400", "tied-embeddings-all": "true", "dim-emb": "64", "transformer-heads": "4",
        "enc-depth": "2", "dec-depth": "1", "transformer-dim-ffn": "128", "learn-rate": "0.003", "lr-warmup": "50",
        "mini-batch": "32", "after-batches": "600", "seed": "1", "cpu-threads": "1", "workspace": "300",
        "max-length": "100",
    }  # fmt: skip
    marian(*(word for name, values in options.items() for word in (f"--{name}", *values.split())), cwd=tmp_path)
    vocabulary = tmp_path / "vocab.spm"
    bundle = import_marian(tmp_path / "model.npz", [vocabulary, vocabulary], tmp_path / "bundle")
    model = ["--models", "model.npz", "--vocabs", "vocab.spm", "vocab.spm"]
    compare(bundle.path, lines, *decode(lines, tmp_path, *model, *GREEDY))
