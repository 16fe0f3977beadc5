"""Fine-tuning: ``dst train --init`` starts from the weights of a bundle."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from support.data.prep import build, refuses
from support.processes.launching import run_dst
from support.processes.ranks import run_dst_ranks
from support.training.runs import TINY, records

from dstransformer.cli import main
from dstransformer.model import open_bundle

SHORT = ["training.max_updates=2", "checkpoint.every_updates=2", "model.dropout=0.1"]

#: An update with this rate changes no weight by more than 1e-8.
STANDSTILL = ["schedule.peak=1e-9", "model.dropout=0.3"]

pytestmark = pytest.mark.slow


def options(corpus: Path, run: Path, *overrides: str) -> list[str]:
    return ["train", "toy", "--corpus", str(corpus), "--run", str(run), "--set", *TINY, *SHORT, *overrides]


def test_training_starts_from_the_weights_and_names_its_parent(
    plain_run: Path, toy_corpus: Path, tmp_path: Path
) -> None:
    run, bundle = tmp_path / "run", tmp_path / "moved"
    shutil.copytree(plain_run / "bundle", bundle)
    command = options(toy_corpus, run, *STANDSTILL, "training.seed=7")
    done = run_dst_ranks(2, *command, "--init", str(bundle), "--ds", "zero3", "fp32")
    assert done.returncode == 0, done.stderr
    assert f"init      {bundle}, the same tokenizer" in done.stderr
    child, origin = open_bundle(run), open_bundle(bundle)
    torch.testing.assert_close(child.load_weights(), origin.load_weights(), rtol=0, atol=1e-7)
    record = child.provenance["parent"]
    assert record["weights_sha256"] == origin.weights_sha256
    assert record["same_tokenizer"]
    start, end = records(run, "valid")
    assert (start["step"], end["step"]) == (0, 2)
    (recorded,) = records(plain_run, "final_validation")
    assert start["loss"] == pytest.approx(recorded["loss"], rel=1e-5), "the score before the first update"
    assert end["loss"] == pytest.approx(start["loss"], rel=1e-5)
    assert child.provenance["final"]["scores"]["start"] == record["score"] == start["bleu_first_4"]
    assert "; where it began bleu_first_4" in done.stdout
    shutil.rmtree(bundle)
    more = [*command, "training.max_updates=3"]
    other = run_dst(*more, "--ds", "zero0", "fp32", "--init", str(tmp_path / "other"))
    assert other.returncode == 2
    assert f"this run started from another bundle ({bundle})" in other.stderr
    again = run_dst(*more, "--ds", "zero0", "fp32", "--init", str(bundle))
    assert again.returncode == 0, again.stderr
    assert open_bundle(run).provenance["parent"] == record, "a resumed run keeps its parent, which need not be there"
    assert [line["step"] for line in records(run, "valid")] == [0, 2, 3], "it is not scored again"
    assert "start" in open_bundle(run).provenance["final"]["scores"]


def test_another_tokenizer_keeps_the_rows_of_shared_pieces(plain_run: Path, toy_corpus: Path, tmp_path: Path) -> None:
    corpus, run = tmp_path / "corpus", tmp_path / "run"
    assert (
        build("--source", "toy", "--pairs", "400", "--tokenizer", "unigram", "--vocab-size", "380", "--out", corpus)
        == 0
    )
    done = run_dst(*options(corpus, run, *STANDSTILL), "--init", str(plain_run))
    assert done.returncode == 0, done.stderr
    child, origin = open_bundle(run), open_bundle(plain_run)
    old, new = (
        {piece: number for number, piece in enumerate(bundle.tokenizer.pieces(range(bundle.tokenizer.vocab_size)))}
        for bundle in (origin, child)
    )
    shared = old.keys() & new.keys()
    assert 4 < len(shared) < len(new)
    assert f"{len(shared)} of {len(new)} pieces are in its tokenizer" in done.stderr
    theirs, ours = origin.load_weights(), child.load_weights()
    for piece in shared:
        torch.testing.assert_close(
            ours["embedding.weight"][new[piece]], theirs["embedding.weight"][old[piece]], rtol=0, atol=1e-7
        )
    fresh = [new[piece] for piece in new.keys() - old.keys()]
    assert ours["embedding.weight"][fresh].std() == pytest.approx(32**-0.5, rel=0.2), "new pieces start at random"
    name = "encoder.0.feed_forward.inner.weight"
    torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-7)


@pytest.mark.parametrize(("change", "message"), [
    ("model.d_ff=96", "model.d_ff is 64 there and 96 here; give --set model.d_ff=64"),
    ("model.num_layers=1", "has another architecture: model.num_layers is"),
])  # fmt: skip
def test_another_architecture_is_refused(
    plain_run: Path, toy_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, message: str
) -> None:
    command = [*options(toy_corpus, tmp_path / "run", change), "--init", str(plain_run)]
    assert message in refuses(capsys, main(command))
    assert not (tmp_path / "run").exists()
