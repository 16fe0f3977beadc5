"""``dst export ct2`` and ``--engine ct2``: the same model, translated with the search of CTranslate2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.data.corpora import TEXT
from support.models.packed import model_logits
from support.models.random_bundle import random_bundle
from support.processes.launching import run_dst

from dstransformer.config import load_config
from dstransformer.data import BOS_ID, EOS_ID, Corpus
from dstransformer.decoding import Translator
from dstransformer.errors import ConfigError, DataError
from dstransformer.evaluation.bleu import score
from dstransformer.exchange.ct2 import POSITIONS, export_ct2
from dstransformer.exchange.ct2_engine import CT2Engine, open_ct2
from dstransformer.exchange.hf_export import export_hf
from dstransformer.exchange.weights import length_exponent
from dstransformer.model import open_bundle, save_bundle


@pytest.fixture(scope="session")
def exported(shared_folder: Callable[[str, Callable[[Path], object]], Path], trained: Path) -> Path:
    return shared_folder("export-ct2", lambda folder: export_ct2(trained, folder))


def assert_alike(bundle: Path, sentences: list[str]) -> None:
    """By greedy search, outputs that end by themselves are those of our engine, with its log-probabilities.

    CTranslate2's are higher: three pieces that are never an output have no share, which a tenth of label smoothing
    gives them.
    """
    ct2 = open_ct2(bundle, beam_size=1)
    ours, theirs = Translator.load(bundle, settings=ct2.settings).search(sentences), ct2.search(sentences)
    limits = [len(ids) + ct2.settings.max_extra_tokens for ids in ct2.tokenizer.encode(sentences)]
    ended = [
        (one, other)
        for (one,), (other,), limit in zip(ours, theirs, limits, strict=True)
        if len(one.tokens) < limit  # there CTranslate2 goes on to the limit of the batch's longest sentence
    ]
    equal = [(one, other) for one, other in ended if one.tokens == other.tokens]
    assert len(equal) > 0.98 * len(ended) > 0.5 * len(sentences)
    for one, other in equal:
        assert -1e-3 < other.log_probability - one.log_probability < 0.01 * (len(one.tokens) + 1)


def engine_of(ct2: Translator) -> CT2Engine:
    assert isinstance(ct2.engine, CT2Engine)
    return ct2.engine


def test_greedy_search_finds_what_ours_does(trained: Path, learned: list[str]) -> None:
    assert_alike(trained, learned[:100])


def test_a_beam_translates_as_well_as_ours(trained: Path, exported: Path, toy_corpus: Path, learned: list[str]) -> None:
    corpus, ct2 = Corpus.open(toy_corpus), open_ct2(exported)
    *_, tgt, lengths = corpus.split("train").gather(np.arange(len(learned)))
    references = corpus.tokenizer.decode([ids.tolist() for ids in np.split(tgt, np.cumsum(lengths)[:-1])])
    ours, theirs = (score(one.translate(learned), references)[0].value for one in (Translator.load(trained), ct2))
    assert theirs == pytest.approx(ours, abs=2)
    assert ct2.translate(["", " "]) == ["", ""]


def test_scores_are_those_of_ctranslate2(exported: Path, learned: list[str]) -> None:
    """The log-probability over a power of the length, with the end if there is one; a beam is ranked by it."""
    ct2 = open_ct2(exported)
    power = length_exponent(ct2.settings)
    for outputs in ct2.search(learned[:20], n_best=3):
        assert len({tuple(one.tokens) for one in outputs}) == 3
        assert [one.score for one in outputs] == sorted((one.score for one in outputs), reverse=True)
        for one in outputs:
            lengths = len(one.tokens), len(one.tokens) + 1
            assert one.score in [pytest.approx(one.log_probability / length**power) for length in lengths]


@pytest.mark.parametrize("changes", [
    {},
    {"activation": "gelu"},
    {"norm": "pre"},
    {"positions": "learned", "max_positions": 128, "d_k": 8, "d_v": 24},
    {"encoder_layers": 3, "decoder_layers": 1},
    {"activation": "swish", "attention_bias": True, "output_bias": True, "tie_embeddings": "none"},
])  # fmt: skip
@torch.no_grad()
def test_other_functions_and_biases_have_the_same_probabilities(tmp_path: Path, changes: dict[str, Any]) -> None:
    bundle = open_bundle(random_bundle(tmp_path / "bundle", **changes))
    export_ct2(bundle.path, tmp_path / "ct2")
    src, tgt = (bundle.tokenizer.encode([text])[0] for text in (TEXT[0], TEXT[3]))
    pair = torch.tensor([*src, EOS_ID]), torch.tensor([BOS_ID, *tgt])
    ours = model_logits(bundle.build_model(), [pair]).log_softmax(dim=-1)
    engine = engine_of(open_ct2(tmp_path / "ct2"))
    names = [bundle.tokenizer.pieces(ids) for ids in (src, tgt)]
    theirs = engine.translator.score_batch([names[0]], [names[1]])[0].log_probs
    expected = ours[range(len(tgt) + 1), [*tgt, EOS_ID]]
    torch.testing.assert_close(torch.tensor(theirs), expected, rtol=0, atol=1e-4)


def test_outputs_have_a_maximum_length(exported: Path, learned: list[str]) -> None:
    ct2 = open_ct2(exported, max_extra_tokens=0, min_tokens=3)
    for sentence in learned[:20]:
        (ids,) = ct2.tokenizer.encode([sentence])
        assert all(3 <= len(one.tokens) <= max(len(ids), 3) for one in ct2.search([sentence], n_best=4)[0])


def test_the_least_length_may_exceed_the_limit(exported: Path, learned: list[str]) -> None:
    ct2 = open_ct2(exported, min_tokens=40, max_extra_tokens=0)
    assert all(len(one.tokens) >= 40 for (one,) in ct2.search(learned[:3]))


@pytest.mark.parametrize("beam", [1, 4])
def test_outputs_begin_with_their_prefixes(exported: Path, learned: list[str], beam: int) -> None:
    ct2 = open_ct2(exported, beam_size=beam)
    prefixes = ["die Katze", "", "ein"] * 20
    found = ct2.search(learned[:60], prefixes=prefixes, n_best=beam)
    assert all(one.text.startswith(prefix) for each, prefix in zip(found, prefixes, strict=True) for one in each)
    plain = ct2.search(learned[:60])
    assert [each[0].tokens for each in found[1::3]] == [one.tokens for (one,) in plain[1::3]]
    with pytest.raises(DataError, match=r"prefix of sentence 1 .*5001"):
        ct2.search(learned[:1], prefixes=["die Katze " * 1000])


def test_rows_beyond_the_pieces_are_no_output(tmp_path: Path, trained: Path, learned: list[str]) -> None:
    opened = open_bundle(trained)
    weights, config, size = opened.load_weights(), opened.training_config(), opened.tokenizer.vocab_size
    (full_stop,) = (token for token, name in enumerate(opened.tokenizer.pieces(range(size))) if name == ".")
    matrix = torch.cat((weights["embedding.weight"][:size], weights["embedding.weight"][full_stop, None] * 1.02))
    model = config.model.model_copy(update={"vocab_multiple": size + 1})  # one row that is no piece, and likely
    changed = config.model_copy(update={"model": model})
    save_bundle(tmp_path / "bundle", weights | {"embedding.weight": matrix}, changed, opened.tokenizer, {"step": 1})
    with_row, without = (open_ct2(path, beam_size=1).translate(learned[:40]) for path in (tmp_path / "bundle", trained))
    assert with_row == without


def test_there_is_no_pruning(tmp_path: Path, trained: Path) -> None:
    shutil.copytree(trained, tmp_path / "bundle")
    config = tmp_path / "bundle" / "config.yaml"
    stored = yaml.safe_load(config.read_text())
    stored["decoding"]["pruning_threshold"] = 2.0
    config.write_text(yaml.safe_dump(stored, sort_keys=False))
    provenance = tmp_path / "bundle" / "provenance.json"
    record = json.loads(provenance.read_text())
    del record["files"]["config.yaml"]
    provenance.write_text(json.dumps(record))
    assert open_ct2(tmp_path / "bundle").describe()["pruning_threshold"] == 0
    with pytest.raises(ConfigError, match="--prune"):
        open_ct2(tmp_path / "bundle", pruning_threshold=1.0)


def test_a_bundle_gets_the_positions_that_its_inputs_need(trained: Path) -> None:
    assert engine_of(open_ct2(trained, max_input_tokens=5000)).max_tokens > 5000
    assert engine_of(open_ct2(trained)).max_tokens == POSITIONS


def test_fewer_positions_are_smaller(tmp_path: Path, trained: Path, exported: Path, learned: list[str]) -> None:
    export_ct2(trained, tmp_path / "short", positions=100)
    sizes = [(folder / "model.bin").stat().st_size for folder in (exported, tmp_path / "short")]
    width = open_bundle(trained).model.d_model
    assert sizes[0] - sizes[1] == 4 * width * (POSITIONS - 100), "one table for both sides"
    short = open_ct2(tmp_path / "short")
    assert engine_of(short).max_tokens == 100
    assert short.translate(learned[:20]) == open_ct2(exported).translate(learned[:20])
    assert len(short.translate([" ".join(learned[:20])])) == 1, "its input is cut"


def test_a_tiny_student_has_at_most_17_megabytes(tmp_path: Path) -> None:
    shape = load_config("student_tiny").model.model_dump() | {"vocab_multiple": 8000}
    export_ct2(random_bundle(tmp_path / "bundle", **shape), tmp_path / "ct2", quantization="int8")
    size = sum(path.stat().st_size for path in (tmp_path / "ct2").iterdir())
    assert 10_000_000 < size < 17_000_000 - 500_000, "the vocabulary and the tokenizer of 8,000 pieces are larger"


def test_the_engine_has_the_threads_that_are_asked_for_and_leaves_pytorch_its_own(exported: Path) -> None:
    before = torch.get_num_threads()
    for threads in (1, 3):
        ct2 = open_ct2(exported, threads=threads)
        assert engine_of(ct2).translator.num_translators == threads
        ct2.translate(["dog"])
    assert torch.get_num_threads() == before


def test_long_inputs_are_cut_to_the_positions(trained: Path, exported: Path, caplog: pytest.LogCaptureFixture) -> None:
    ct2 = open_ct2(exported, max_input_tokens=3)
    ids = ct2.tokenizer.encode(["The dog sees the cat and the bird."])
    assert ct2.translate_ids(ids) == ct2.translate_ids([ids[0][:3]])
    assert "only its first 3 are translated" in caplog.text
    refused = open_ct2(exported, max_input_tokens=3, long_inputs="refuse")
    assert refused.translate(["The dog sees the cat and the bird."]) == [""]


def test_the_command_takes_exports_and_bundles(
    tmp_path: Path, trained: Path, exported: Path, learned: list[str]
) -> None:
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in learned[:20]), encoding="utf-8")
    expected = open_ct2(exported).translate(learned[:20])
    for source in (exported, trained):
        done = run_dst("translate", str(source), str(text), "--engine", "ct2")
        assert done.returncode == 0, done.stderr
        assert done.stdout.split("\n") == [*expected, ""]
    for options, message in (
        ([], "is an export for CTranslate2, not a bundle: add --engine ct2"),
        (["--engine", "ct2", "--sample"], "--sample is not available with --engine ct2"),
        (["--engine", "ct2", "--device", "tpu"], "cannot use the device 'tpu' with CTranslate2"),
    ):
        refused = run_dst("translate", str(exported), str(text), *options)
        assert refused.returncode == 2
        assert message in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_a_damaged_export_is_refused(tmp_path: Path, trained: Path) -> None:
    export_ct2(trained, tmp_path / "ct2")
    record = tmp_path / "ct2" / "dst.json"
    content = json.loads(record.read_text())
    for damaged, message in (
        ("{", "is damaged"),
        (json.dumps(content | {"positions": None}), "is damaged"),
    ):
        record.write_text(damaged)
        with pytest.raises(DataError, match=message):
            open_ct2(tmp_path / "ct2")


def test_parsers_are_refused(tmp_path: Path, trained: Path) -> None:
    shutil.copytree(trained, tmp_path / "parser")
    config = tmp_path / "parser" / "config.yaml"
    stored = yaml.safe_load(config.read_text()) | {"trees": {"tags": "xx", "closing": "label"}}
    config.write_text(yaml.safe_dump(stored, sort_keys=False))
    for export in (export_ct2, export_hf):
        with pytest.raises(DataError, match="parser"):
            export(tmp_path / "parser", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_little_is_queued_that_an_interrupt_would_wait_for(exported: Path) -> None:
    submitted: list[int] = []
    ahead = engine_of(open_ct2(exported, threads=2)).submit_ahead(range(100), submitted.append)
    assert next(ahead)[0] == 0
    assert submitted == [0, 1, 2, 3]
    assert [job for job, _ in ahead] == list(range(1, 100))
    assert submitted == list(range(100))
