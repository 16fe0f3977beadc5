"""A vocabulary for each side: the corpus, training, everything that uses a model, and its exports."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.data.corpora import build_toy
from support.data.prep import refuses
from support.processes.launching import run_dst
from support.training.runs import TINY, records

from dstransformer.cli import main
from dstransformer.data import Corpus
from dstransformer.data.plan import Position
from dstransformer.data.subwords import BpeDropout
from dstransformer.decoding import Translator
from dstransformer.decoding.scoring import Scorer
from dstransformer.errors import DataError
from dstransformer.exchange.ct2 import export_ct2
from dstransformer.exchange.ct2_engine import open_ct2
from dstransformer.exchange.pyfunc import _load_pyfunc
from dstransformer.extras.serving.loaded_model import word_attention
from dstransformer.model import Bundle, open_bundle
from dstransformer.training.checkpoints.averaging import average_run

UPDATES = [*TINY, "training.max_updates=20", "checkpoint.every_updates=10", "checkpoint.average_last=2"]
TIED = "model.tie_embeddings=target"


@pytest.fixture(scope="session")
def corpus(shared_folder: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    return shared_folder("separate-corpus", lambda folder: build_toy(folder, 400, "--no-joint"))


@pytest.fixture(scope="session")
def run(shared_folder: Callable[[str, Callable[[Path], object]], Path], corpus: Path) -> Path:
    def train(folder: Path) -> None:
        done = run_dst(*options(corpus, folder), TIED)
        assert done.returncode == 0, done.stderr

    return shared_folder("separate-run", train)


def options(corpus: Path, run: Path) -> list[str]:
    return ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--ds", "zero0", "fp32", "--set", *UPDATES]


@pytest.fixture
def bundle(run: Path) -> Bundle:
    return open_bundle(run)


@pytest.fixture
def texts(corpus: Path) -> tuple[list[str], list[str]]:
    split = Corpus.open(corpus).split("validation")
    return split.src_texts(), split.tgt_texts()


def test_the_corpus_holds_a_tokenizer_for_each_side(corpus: Path) -> None:
    opened = Corpus.open(corpus)
    tokenizer, manifest = opened.tokenizer, opened.manifest
    assert not tokenizer.is_joint
    assert manifest.src_tokenizer is not None
    assert (tokenizer.sha256, tokenizer.src.sha256) == (manifest.tokenizer.sha256, manifest.src_tokenizer.sha256)
    assert len({tokenizer.sha256, tokenizer.src.sha256, tokenizer.identity}) == 3
    split = opened.split("validation")
    src, src_lengths, tgt, tgt_lengths = split.gather(np.arange(len(split)))
    for own, ids, lengths, texts in (
        (tokenizer.src, src, src_lengths, split.src_texts()),
        (tokenizer, tgt, tgt_lengths, split.tgt_texts()),
    ):
        rows = [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])]
        assert own.decode(rows) == texts
        assert not any("<0x" in piece for piece in own.pieces(ids.tolist())), "each is trained on its own language"
    umlauts = {piece for piece in tokenizer.src.pieces(range(tokenizer.src.vocab_size)) if set(piece) & set("äöüß")}
    assert not umlauts


def test_bpe_dropout_divides_each_side_by_its_own_merges(corpus: Path) -> None:
    opened = Corpus.open(corpus)
    tokenizer = opened.tokenizer
    before = opened.split("validation").gather(np.arange(20))
    after = BpeDropout(tokenizer, 0.3, 1, None).sample(before, Position(), 0)
    for own, place in ((tokenizer.src, 0), (tokenizer, 2)):
        assert own.decode([after[place].tolist()]) == own.decode([before[place].tolist()])
        assert len(after[place]) > len(before[place])


def test_one_matrix_for_two_vocabularies_is_refused(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refuses(capsys, main(options(corpus, tmp_path / "run")))
    assert "model.tie_embeddings = all, but" in said
    assert "set model.tie_embeddings=target" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_bundle_scores_text_as_the_run_scored_the_corpus(
    run: Path, bundle: Bundle, texts: tuple[list[str], list[str]]
) -> None:
    """So text to translate becomes the ids that the model was trained with, on both sides."""
    scores = Scorer.load(bundle).score(*texts)
    perplexity = math.exp(-sum(one.log_probability for one in scores) / sum(one.tokens for one in scores))
    (final,) = records(run, "final_validation")
    assert perplexity == pytest.approx(final["perplexity"], rel=1e-4)
    weights = bundle.load_weights()
    rows = {name: len(weight) for name, weight in weights.items() if name.endswith("embedding.weight")}
    assert rows == {"embedding.weight": 400, "src_embedding.weight": 400}
    assert "softmax.weight" not in weights


@pytest.mark.slow
def test_everything_that_uses_a_model_uses_both(
    run: Path, bundle: Bundle, texts: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    sources, targets = texts[0][:12], texts[1][:12]
    translator = Translator.load(bundle)
    expected = translator.translate(sources)
    ids = translator.translate_ids(bundle.tokenizer.src.encode(sources))
    assert expected == bundle.tokenizer.decode(ids)
    assert _load_pyfunc(str(bundle.path)).predict(sources) == expected
    average_run(run, tmp_path / "average", last=2, include_warmup=True)
    averaged = open_bundle(tmp_path / "average")
    assert averaged.tokenizer.identity == bundle.tokenizer.identity
    assert Translator.load(bundle, others=[averaged.path]).translate(sources[:1])
    found = word_attention(translator, sources[0], targets[0])
    assert (found.source, found.target) == (sources[0].split(), targets[0].split())
    drawn = run_dst("attention", str(run), sources[0], "--target", targets[0], "--out", str(tmp_path / "pictures"))
    assert drawn.returncode == 0, drawn.stderr
    (tmp_path / "text").write_text("".join(line + "\n" for line in sources))
    translated = run_dst("translate", str(run), str(tmp_path / "text"))
    assert translated.stdout.splitlines() == expected, translated.stderr


@pytest.mark.slow
def test_a_ctranslate2_export_holds_both(bundle: Bundle, texts: tuple[list[str], list[str]], tmp_path: Path) -> None:
    export_ct2(bundle.path, tmp_path / "ct2")
    export_ct2(bundle.path, tmp_path / "ct2", overwrite=True)
    ct2 = open_ct2(tmp_path / "ct2", beam_size=1)
    found = zip(Translator.load(bundle, settings=ct2.settings).search(texts[0]), ct2.search(texts[0]), strict=True)
    both = [(one.tokens, other.tokens[: len(one.tokens)]) for (one,), (other,) in found]  # whose limit is a batch's
    assert sum(one == other for one, other in both) > 0.8 * len(both)


def test_a_bundle_without_the_source_model_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    for path in bundle.path.iterdir():
        if path.name != "tokenizer.src.model":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(DataError, match=r"tokenizer\.src\.model"):
        open_bundle(tmp_path)
    (tmp_path / "tokenizer.src.model").write_bytes((bundle.path / "tokenizer.model").read_bytes())
    with pytest.raises(DataError, match=r"tokenizer\.src\.model .*hash"):
        open_bundle(tmp_path)
