"""Files of every released format version open, and a run resumes from them, also after the schema has gained keys.

``tests/data/formats/1`` holds a corpus and a run with a checkpoint, written by commit c787bc4: bundles and
checkpoints of format version 1, and a corpus of format version 2. ``tests/data/formats/2`` holds the same bundle in
format version 2, written by commit d807e0e, and a checkpoint of format version 2, written by commit 558e429.
``tests/data/formats/3`` holds a run like the first with a checkpoint and a bundle of format version 3, and a corpus
of format version 4, written by commit 1a71624. ``tests/data/formats/4`` holds a corpus of format version 6 of two
sources with a vocabulary for each language, written by commit 480d097. ``tests/data/formats/5`` holds a corpus of
format version 7, written by commit c029a82. ``tests/data/formats/6`` holds a corpus of format version 9, with
alignments, written by commit 7cfc0f8. ``tests/data/formats/7`` holds a bundle of format version 6, an imported
OPUS-MT model with random weights, an export for Marian and a record of a training, both of format version 1, written
by commit 4109322. ``tests/data/formats/1/ct2`` and ``hf`` are the bundle of version 1 as exports of format version 1:
for CTranslate2, and for Hugging Face, written by commit 830c7b3.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from support.processes.launching import run_command, run_dst
from support.training.runs import losses

from data_prep.cli.page import render_report
from data_prep.cli.verify import check_held_out, check_tags
from dstransformer.data import Corpus
from dstransformer.data.budget import build_budget
from dstransformer.data.links import LinkReader
from dstransformer.data.plan import LengthSums, plan_epoch
from dstransformer.data.windows import training_lengths
from dstransformer.decoding import Translator
from dstransformer.decoding.scoring import Scorer
from dstransformer.errors import ConfigError, DataError
from dstransformer.exchange.ct2_engine import open_ct2
from dstransformer.exchange.hf_export import WEIGHTS, export_hf
from dstransformer.exchange.marian_import import import_marian
from dstransformer.extras.reproduction import record
from dstransformer.model import open_bundle, training_flops
from dstransformer.training.checkpoints.format import read_checkpoint, verify_checkpoint

STORED = Path(__file__).parents[1] / "data" / "formats" / "1"
CURRENT = STORED.parent / "3" / "run"
CHECKPOINT = Path("run", "checkpoints", "step-00000004")

#: The overrides that the stored runs were started with.
OVERRIDES = json.loads((STORED / "run" / "bundle" / "provenance.json").read_text())["overrides"]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A copy of the corpus and of the run of version 3."""
    shutil.copytree(STORED / "corpus", tmp_path / "stored" / "corpus")
    shutil.copytree(CURRENT, tmp_path / "stored" / "run")
    return tmp_path / "stored"


def resume(stored: Path, *more: str) -> list[str]:
    command = [
        "train",
        "toy",
        "--corpus",
        str(stored / "corpus"),
        "--run",
        str(stored / "run"),
        "--ds",
        "zero1",
        "fp32",
    ]
    return [*command, "--set", *OVERRIDES, "training.max_updates=6", *more, "--json"]


def flops_of_updates(stored: Path, first: int, last: int) -> int:
    """The FLOPs of these updates in the first epoch of the stored run, computed from its plan."""
    bundle, corpus = open_bundle(STORED / "run" / "bundle"), Corpus.open(stored / "corpus")
    config, lengths = bundle.training_config(), training_lengths(corpus.split("train"))
    plan = plan_epoch(*lengths, config.training.seed, 0, build_budget(config.batch))
    pairs = [plan.update(number - 1) for number in range(first, last + 1)]
    rows = config.model.embedding_rows(corpus.tokenizer.vocab_size)
    sums = [LengthSums.of(*(side[update] for side in lengths)) for update in pairs]
    return sum(training_flops(config.model, rows, update) for update in sums)


def test_a_bundle_of_version_1_opens_and_translates() -> None:
    bundle = open_bundle(STORED / "run" / "bundle")
    assert (bundle.src_lang, bundle.tgt_lang, bundle.model.d_model) == ("en", "de", 8)
    assert bundle.training_config().schedule.warmup_steps == 2
    assert len(Translator.load(bundle).translate(["The dog sees the cat."])) == 1


def test_a_bundle_of_version_2_opens_and_translates_alike() -> None:
    bundle = open_bundle(STORED.parent / "2" / "bundle")
    assert (bundle.src_lang, bundle.tgt_lang, bundle.trees) == ("en", "de", None)
    sentence = ["The dog sees the cat."]
    older = Translator.load(open_bundle(STORED / "run" / "bundle"))
    assert Translator.load(bundle).translate(sentence) == older.translate(sentence)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_checkpoints_of_all_versions_open(version: int) -> None:
    checkpoint = read_checkpoint(STORED.parent / str(version) / CHECKPOINT)
    verify_checkpoint(checkpoint)
    assert (checkpoint.state.step, checkpoint.state.position.update, checkpoint.metric) == (4, 4, "bleu_first_4")
    assert checkpoint.version == version
    assert len(Translator.load(open_bundle(checkpoint.bundle)).translate(["The dog sees the cat."])) == 1


@pytest.mark.parametrize(("folder", "pairs"), [("1", 120), ("3", 60)])
def test_corpora_of_versions_2_and_4_open(folder: str, pairs: int) -> None:
    corpus = Corpus.open(STORED.parent / folder / "corpus")
    assert len(corpus.split("train")) == pairs
    assert corpus.manifest.parts == ()


def test_a_corpus_of_version_6_opens_with_its_parts_and_vocabularies() -> None:
    corpus = Corpus.open(STORED.parent / "4" / "corpus")
    news, back = corpus.manifest.parts
    assert (news.pairs, news.tag, back.pairs, back.tag, back.weight) == (55, None, 40, "<bt>", 0.5)
    assert not corpus.tokenizer.is_joint
    check_tags(corpus)
    check_held_out(corpus)
    assert (corpus.manifest.cleaning.before, corpus.manifest.cleaning.after) == (None, None)
    assert "before and after" not in render_report(corpus, "stored")


def test_a_corpus_of_version_7_opens_with_one_direction() -> None:
    corpus = Corpus.open(STORED.parent / "5" / "corpus")
    (part,) = corpus.manifest.parts
    assert (part.pairs, part.src_lang, part.tgt_lang) == (60, None, None)
    assert (corpus.manifest.directions, corpus.split("validation").directions) == ((), {})
    check_held_out(corpus)


def test_a_corpus_of_version_9_opens_with_its_alignments() -> None:
    corpus = Corpus.open(STORED.parent / "6" / "corpus")
    train = corpus.split("train")
    assert corpus.manifest.format_version == 9
    assert train.is_aligned
    links, counts = train.gather_links(np.arange(60))
    assert counts.sum() == len(links) == train.info.links == 550
    rows = np.array([3, 4])
    pairs = train.gather(rows)
    assert LinkReader(train, corpus.tokenizer).read(rows, pairs, pairs) is not None
    check_held_out(corpus)


@pytest.mark.parametrize("version", [1, 2])
def test_training_does_not_go_on_from_deepspeeds_files(stored: Path, version: int) -> None:
    there = stored / CHECKPOINT
    shutil.rmtree(there)
    shutil.copytree(STORED.parent / str(version) / CHECKPOINT, there)
    done = run_dst(*resume(stored))
    assert done.returncode == 2
    assert "step-00000004: an earlier version of dstransformer wrote it" in done.stderr
    assert done.stderr.count("\n") == 1
    assert len(losses(stored / "run")) == 4
    done = run_dst("average", str(stored / "run"), "--last", "1", "--out", str(stored / "average"))
    assert done.returncode == 0, done.stderr


def test_a_run_of_version_3_resumes(stored: Path) -> None:
    before = read_checkpoint(stored / CHECKPOINT).state.cost
    done = run_dst(*resume(stored))
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["step"] == 6
    assert len(losses(stored / "run")) == 6
    assert outcome["cost"]["flops"] == before.flops + flops_of_updates(stored, 5, 6)
    assert 3600 * outcome["cost"]["device_hours"] > before.device_seconds


def test_old_runs_open_after_the_schema_gains_keys(stored: Path, tmp_path: Path) -> None:
    """The schema of a later version has one more model key and training key, with defaults in base.yaml."""
    shutil.copytree(Path(__file__).parents[2] / "dstransformer", tmp_path / "later" / "dstransformer")
    shutil.copytree(Path(__file__).parents[2] / "ds_configs", tmp_path / "later" / "ds_configs")
    config = tmp_path / "later" / "dstransformer" / "config"
    for path, before, after in (
        (config / "presets" / "base.yaml", "  d_model:", "  rotary: false\n  d_model:"),
        (config / "presets" / "base.yaml", "  max_updates:", "  mixing: none\n  max_updates:"),
        (config / "schema.py", "    d_ff: Width\n", "    d_ff: Width\n    rotary: bool\n"),
        (config / "schema.py", "    max_updates: Count\n", "    max_updates: Count\n    mixing: str\n"),
    ):
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after, 1))
    text = stored / "text.en"
    text.write_text("The dog sees the cat.\n")
    environment = {"PYTHONPATH": str(tmp_path / "later")}
    for command in (resume(stored), ["translate", str(stored / "run"), str(text)]):
        done = run_command([sys.executable, "-m", "dstransformer", *command], env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    with pytest.raises(ConfigError, match=r"the key 'model\.rotary', which this version does not know"):
        open_bundle(stored / "run")


@pytest.mark.parametrize("part", ["bundle", "checkpoint", "corpus"])
def test_a_newer_format_is_refused_by_name(stored: Path, part: str) -> None:
    if part == "bundle":
        (stored / "run" / "bundle" / "config.yaml").write_text("format_version: 99\n")
        with pytest.raises(DataError, match=r"config\.yaml has format version 99, .* update dstransformer"):
            open_bundle(stored / "run")
        return
    folder = stored / CHECKPOINT if part == "checkpoint" else stored / "corpus"
    manifest = json.loads((folder / "manifest.json").read_text()) | {"format_version": 99}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"manifest\.json has format version 99, .* update dstransformer"):
        read_checkpoint(folder) if part == "checkpoint" else Corpus.open(folder)


def test_an_export_of_the_first_format_translates() -> None:
    sentences = ["The old man sees a dog.", "Two men are talking."]
    bundle = CURRENT / "bundle"
    assert open_bundle(bundle).tokenizer.is_joint
    translated = [open_ct2(folder).search(sentences) for folder in (STORED / "ct2", bundle)]
    assert translated[0] == translated[1]


def test_a_hugging_face_export_of_the_first_format_is_replaced_by_its_equal(tmp_path: Path) -> None:
    """With a joint vocabulary only what may come without a new version has come: the SentencePiece model, languages."""
    shutil.copytree(STORED / "hf", tmp_path / "hf")
    (tmp_path / "hf" / "README.md").write_text("an older card")
    export_hf(STORED / "run" / "bundle", tmp_path / "hf", overwrite=True)
    weights = [safetensors.torch.load_file(folder / WEIGHTS) for folder in (STORED / "hf", tmp_path / "hf")]
    stored, texts = (
        {path.name: path.read_bytes() for path in folder.iterdir() if path.name != WEIGHTS}
        for folder in (STORED / "hf", tmp_path / "hf")
    )
    assert texts.pop("source.spm") == (STORED / "run" / "bundle" / "tokenizer.model").read_bytes()
    before, now = (json.loads(files.pop("config.json")) for files in (stored, texts))
    assert (now["dstransformer"].pop("src_lang"), now["dstransformer"].pop("tgt_lang")) == ("en", "de")
    assert now == before
    assert texts == stored
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)


def test_imported_models_and_exports_for_marian_open(tmp_path: Path) -> None:
    folder = STORED.parent / "7"
    assert "format_version: 6" in (folder / "bundle" / "config.yaml").read_text()
    marian, vocabulary = folder / "marian", folder / "marian" / "vocab.spm"
    assert json.loads((marian / "dstransformer.json").read_text())["format_version"] == 1
    import_marian(marian / "model.npz", [vocabulary, vocabulary], tmp_path / "bundle")
    for bundle, expected in ((folder / "bundle", -128.11622), (tmp_path / "bundle", -164.78366)):
        (found,) = Scorer.load(bundle).score(["The old man sees a dog."], ["Der alte Mann sieht einen Hund."])
        assert found.log_probability == pytest.approx(expected, abs=1e-3)


def test_a_record_of_the_first_format_is_read() -> None:
    found = record.read(STORED.parent / "7" / "record.json")
    assert (found.name, found.world_size, found.config.training.max_updates) == ("run", 2, 60)
    assert found.figures["test"]["chrf"] == pytest.approx(2.5739, abs=1e-4)
    assert found.corpus is not None
