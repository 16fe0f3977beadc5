"""Forced decoding: the scores of ``dst score``."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
import torch
from support.data.corpora import TEXT, small_tokenizer

from dstransformer.cli import main
from dstransformer.config import Config
from dstransformer.data import EOS_ID
from dstransformer.data.packing import Packing, pack_pairs
from dstransformer.decoding import beam_search
from dstransformer.decoding.scoring import PairScore, Scorer, Totals, join_sentences, score_files
from dstransformer.errors import DataError
from dstransformer.extras.rerank.reranking import iter_nbest, with_reverse_scores
from dstransformer.model import Ensemble, Transformer
from dstransformer.model.loss import CHUNK_LOGITS, Objective

PAIRS = [*zip(TEXT, reversed(TEXT), strict=True), ("a", ""), ("", "b"), ("", ""), ("x " * 40, "y")]

LONG = [n for n, pair in enumerate(PAIRS) if max(map(len, small_tokenizer().encode(pair))) > 30]


def scorer(model: Transformer, *, batch_tokens: int = 4096, max_tokens: int = 0) -> Scorer:
    return Scorer(model, small_tokenizer(), batch_tokens=batch_tokens, max_tokens=max_tokens)


def test_the_score_of_beam_searchs_tokens_is_its_own(model: Transformer, config: Config) -> None:
    src = small_tokenizer().encode(TEXT)
    packed = torch.tensor([token for ids in src for token in (*ids, EOS_ID)])
    packing = Packing.from_lengths([len(ids) + 1 for ids in src])
    settings = config.decoding.model_copy(update={"beam_size": 3, "max_extra_tokens": 50})
    found = beam_search(Ensemble([model]), packed, packing, settings, vocab_size=small_tokenizer().vocab_size, n_best=3)
    pairs = [(ids, hypothesis) for ids, hypotheses in zip(src, found, strict=True) for hypothesis in hypotheses]
    assert len(pairs) == 12
    scores = scorer(model).score_ids([ids for ids, _ in pairs], [hypothesis.tokens for _, hypothesis in pairs])
    for score, (_, hypothesis) in zip(scores, pairs, strict=True):
        assert score.log_probability == pytest.approx(hypothesis.log_probability, abs=1e-4)
        assert score.tokens == len(hypothesis.tokens) + 1


def test_the_batch_does_not_matter(model: Transformer) -> None:
    sources, targets = zip(*PAIRS, strict=True)
    whole = scorer(model).score(sources, targets)
    small = scorer(model, batch_tokens=1).score(sources, targets)
    streamed = list(scorer(model, batch_tokens=30).iter_score(PAIRS, buffer_pairs=3))
    for one, other, third in zip(whole, small, streamed, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)
        assert one.log_probability == pytest.approx(third.log_probability, abs=1e-4)
        assert one.log_probability < 0
        assert one.tokens == other.tokens == third.tokens


def test_the_score_is_the_models_likelihood(model: Transformer) -> None:
    """Against the loss of training, which sums over a batch."""
    encode = small_tokenizer().encode
    src, tgt = encode(TEXT), encode(list(reversed(TEXT)))
    with torch.no_grad():
        nll = float(Objective(model)(*pack_pairs(*join_sentences(src), *join_sentences(tgt))).terms["nll"])
    scores = scorer(model).score_ids(src, tgt)
    assert -sum(score.log_probability for score in scores) == pytest.approx(nll, rel=1e-5)


def test_few_logits_are_held_at_once(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, targets = zip(*PAIRS, strict=True)
    whole = scorer(model).score(sources, targets)
    monkeypatch.setitem(CHUNK_LOGITS, "cpu", 1000)
    for one, other in zip(whole, scorer(model).score(sources, targets), strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)


def test_pairs_that_are_too_long_have_no_score(model: Transformer) -> None:
    done: list[int] = []
    scores = scorer(model, max_tokens=30).score(*zip(*PAIRS, strict=True), done.append)
    unscored = [number for number, score in enumerate(scores) if math.isnan(score.log_probability)]
    assert unscored == LONG != []
    assert sum(done) == len(PAIRS)


def test_totals_are_those_of_the_scored_pairs() -> None:
    totals = Totals().plus(PairScore(-2.0, 4)).plus(PairScore(math.nan, 9, is_long=True)).plus(PairScore(-1.0, 2))
    assert totals == Totals(pairs=3, long=1, first_long=2, log_probability=-3.0, tokens=6)
    assert str(totals) == f"3 pairs (1 without a score), 6 target tokens, perplexity {math.exp(0.5):.3f}"
    assert "perplexity nan" in str(Totals())


class TestCommand:
    @pytest.fixture
    def files(self, tmp_path: Path) -> list[str]:
        (tmp_path / "src.gz").write_bytes(gzip.compress("".join(f"{src}\n" for src, _ in PAIRS).encode()))
        (tmp_path / "tgt").write_text("".join(f"{tgt}\n" for _, tgt in PAIRS), encoding="utf-8")
        return ["--src", str(tmp_path / "src.gz"), "--tgt", str(tmp_path / "tgt")]

    def test_text_and_json_lines(
        self,
        bundle: Path,
        files: list[str],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        assert main(["score", str(bundle), *files, "--max-tokens", "30"]) == 0
        rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
        out = tmp_path / "scores.jsonl"
        assert main(["score", str(bundle), *files, "--output", str(out), "--format", "jsonl", "--max-tokens=30"]) == 0
        objects = [json.loads(line) for line in out.read_text().splitlines()]
        assert [found["line"] for found in objects] == list(range(1, len(PAIRS) + 1))
        expected = Scorer.load(bundle, max_tokens=30).score(*zip(*PAIRS, strict=True))
        for row, found, score in zip(rows, objects, expected, strict=True):
            assert int(row[1]) == found["tokens"] == score.tokens
            if math.isnan(score.log_probability):
                assert (row[0], row[2], found["log_probability"], found["perplexity"]) == ("nan", "nan", None, None)
                continue
            assert float(row[0]) == pytest.approx(score.log_probability, abs=1e-3)
            assert found["perplexity"] == pytest.approx(math.exp(-score.log_probability / score.tokens), rel=1e-4)
        said = capsys.readouterr().out
        assert said.startswith(f"{out}: {len(PAIRS)} pairs ({len(LONG)} without a score), ")
        assert caplog.messages[-1] == (
            f"{len(LONG)} of {len(PAIRS)} pairs have no score, as one side has more than 30 tokens (--max-tokens); "
            f"the first is line {LONG[0] + 1}"
        )

    @pytest.mark.parametrize(("changes", "complaint"), [
        ({"--tgt": "src.gz"}, "--src and --tgt are the same file"),
        ({"--tgt": "short"}, "short has 1 line but"),
        ({"--batch-tokens": "0"}, "--batch-tokens 0: a batch holds at least one token"),
        ({"--max-tokens": "-1"}, "--max-tokens -1: give the most tokens of a sentence, or 0"),
    ])  # fmt: skip
    def test_mistakes_leave_nothing_behind(
        self,
        bundle: Path,
        files: list[str],
        tmp_path: Path,
        changes: dict[str, str | None],
        complaint: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        (tmp_path / "short").write_text("one\n")
        monkeypatch.chdir(tmp_path)
        before = sorted(tmp_path.iterdir())
        options = dict(zip(files[::2], files[1::2], strict=True)) | {"--output": "out"} | changes
        command = [word for option, value in options.items() for word in (option, value) if word is not None]
        assert main(["score", str(bundle), *command]) == 2
        errors = capsys.readouterr().err
        assert complaint in errors
        assert errors.count("\n") == 1
        assert sorted(tmp_path.iterdir()) == before

    def test_a_model_that_computes_nan_is_reported(
        self, bundle: Path, files: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def load() -> Scorer:
            scorer = Scorer.load(bundle, max_tokens=0)
            with torch.no_grad():
                scorer.model.softmax_weight.data = torch.full_like(scorer.model.softmax_weight, math.nan)
            return scorer

        totals = score_files(files[1], files[3], str(tmp_path / "out"), load)
        assert str(totals).startswith(f"{len(PAIRS)} pairs ({len(PAIRS)} without a score), 0 target tokens")
        (message,) = caplog.messages
        assert message.startswith(f"{len(PAIRS)} of {len(PAIRS)} pairs have no score, as the model computes NaN for")
        assert "the first is line 1: try another --precision" in message
        lists = [{"line": 1, "source": "a", "text": "b", "log_probability": -1.0, "tokens": 2}]
        (tmp_path / "nbest").write_text("".join(json.dumps(fields) + "\n" for fields in lists))
        nbest = str(tmp_path / "nbest")
        with pytest.raises(DataError, match=r"source line 1: .*--precision"):
            list(with_reverse_scores(iter_nbest(nbest), load(), nbest))

    def test_a_parser_is_refused(self, bundle: Path) -> None:
        config = bundle / "config.yaml"
        config.write_text(config.read_text().replace("trees: null", "trees: {tags: keep, closing: label}"))
        with pytest.raises(DataError, match="is a parser"):
            Scorer.load(bundle)
