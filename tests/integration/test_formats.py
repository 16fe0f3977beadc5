"""Stored files of the formats open, and a run resumes from them, also after the schema has gained keys.

``tests/data/formats/1`` holds a corpus with alignments, a run with a checkpoint and its bundle, exports of that bundle
for CTranslate2 and Hugging Face, an export for Marian and a record of a training, all of format 1.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.processes.launching import run_command, run_dst
from support.training.runs import losses

from data_prep.cli.verify import check_held_out, check_tags
from dstransformer.data import Corpus
from dstransformer.data.form import Form
from dstransformer.data.links import LinkReader
from dstransformer.data.plan import LengthSums, build_budget, plan_epoch
from dstransformer.data.windows import training_lengths
from dstransformer.decoding import Translator
from dstransformer.decoding.scoring import Scorer
from dstransformer.errors import ConfigError, NewerFormatError
from dstransformer.exchange.ct2_engine import open_ct2
from dstransformer.exchange.hf_export import export_hf
from dstransformer.exchange.hf_import import import_hf
from dstransformer.exchange.marian_import import import_marian
from dstransformer.extras.reproduction import record
from dstransformer.io.products import check_run_folder, export_tool
from dstransformer.model import open_bundle, training_flops
from dstransformer.training.checkpoints.format import read_checkpoint, verify_checkpoint

STORED = Path(__file__).parents[1] / "data" / "formats" / "1"
CHECKPOINT = Path("run", "checkpoints", "step-00000004")

#: The overrides that the stored runs were started with.
OVERRIDES = json.loads((STORED / "run" / "bundle" / "provenance.json").read_text())["overrides"]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A copy of the corpus and of the run."""
    shutil.copytree(STORED / "corpus", tmp_path / "stored" / "corpus")
    shutil.copytree(STORED / "run", tmp_path / "stored" / "run")
    return tmp_path / "stored"


def resume(stored: Path, *more: str) -> list[str]:
    where = ["--corpus", str(stored / "corpus"), "--run", str(stored / "run"), "--ds", "zero1", "fp32"]
    return ["train", "toy", *where, "--set", *OVERRIDES, "training.max_updates=6", *more, "--json"]


def flops_of_updates(stored: Path, first: int, last: int) -> int:
    """The FLOPs of these updates in the first epoch of the stored run, computed from its plan."""
    bundle, corpus = open_bundle(STORED / "run" / "bundle"), Corpus.open(stored / "corpus")
    config, lengths = bundle.training_config(), training_lengths(corpus.split("train"))
    plan = plan_epoch(*lengths, config.training.seed, 0, build_budget(config.batch))
    pairs = [plan.update(number - 1) for number in range(first, last + 1)]
    rows = config.model.embedding_rows(corpus.tokenizer.vocab_size)
    sums = [LengthSums.of(*(side[update] for side in lengths)) for update in pairs]
    return sum(training_flops(config.model, rows, update) for update in sums)


def test_a_bundle_opens_and_translates() -> None:
    bundle = open_bundle(STORED / "run" / "bundle")
    assert (bundle.src_lang, bundle.tgt_lang, bundle.model.d_model, bundle.form) == ("en", "de", 8, Form())
    assert bundle.training_config().schedule.warmup_steps == 2
    assert len(Translator.load(bundle).translate(["The dog sees the cat."])) == 1


def test_a_checkpoint_opens() -> None:
    checkpoint = read_checkpoint(STORED / CHECKPOINT)
    verify_checkpoint(checkpoint)
    assert (checkpoint.state.step, checkpoint.state.position.update, checkpoint.metric) == (4, 4, "bleu_first_4")
    assert len(Translator.load(open_bundle(checkpoint.bundle)).translate(["The dog sees the cat."])) == 1


def test_a_corpus_opens_with_its_alignments() -> None:
    corpus = Corpus.open(STORED / "corpus")
    (part,) = corpus.manifest.parts
    assert (part.name, part.pairs, part.src_lang, part.tgt_lang) == ("toy", 120, "en", "de")
    train = corpus.split("train")
    links, counts = train.gather_links(np.arange(120))
    assert counts.sum() == len(links) == train.info.links
    rows = np.array([3, 4])
    pairs = train.gather(rows)
    assert LinkReader(train, corpus.tokenizer).read(rows, pairs, pairs) is not None
    check_tags(corpus)
    check_held_out(corpus)


def test_a_run_resumes(stored: Path) -> None:
    before = read_checkpoint(stored / CHECKPOINT).state.cost
    done = run_dst(*resume(stored))
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["step"] == 6
    assert len(losses(stored / "run")) == 6
    assert outcome["cost"]["flops"] == before.flops + flops_of_updates(stored, 5, 6)
    assert 3600 * outcome["cost"]["device_hours"] > before.device_seconds


def test_runs_open_after_the_schema_gains_keys(stored: Path, tmp_path: Path) -> None:
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
    with pytest.raises(ConfigError, match=r"'model\.rotary'"):
        open_bundle(stored / "run")


@pytest.mark.parametrize(("place", "read"), [
    ("corpus", Corpus.open),
    ("run", check_run_folder),
    (str(CHECKPOINT), read_checkpoint),
    ("run/bundle", open_bundle),
    ("ct2", open_ct2),
    ("hf", lambda folder: import_hf(folder, folder.parent / "bundle")),
])  # fmt: skip
def test_a_newer_format_is_refused_by_name(tmp_path: Path, place: str, read: Callable[[Path], object]) -> None:
    folder = tmp_path / "stored" / Path(place).name
    shutil.copytree(STORED / place, folder)
    marker = json.loads((folder / "dst.json").read_text())
    (folder / "dst.json").write_text(json.dumps(marker | {"format": 99}))
    with pytest.raises(NewerFormatError, match=rf"{folder}/dst\.json .*99"):
        read(folder)


def test_an_export_for_ctranslate2_translates() -> None:
    sentences = ["The old man sees a dog.", "Two men are talking."]
    translated = [open_ct2(folder).search(sentences) for folder in (STORED / "ct2", STORED / "run" / "bundle")]
    assert translated[0] == translated[1]


def test_a_hugging_face_export_is_replaced_by_its_equal_and_imported(tmp_path: Path) -> None:
    shutil.copytree(STORED / "hf", tmp_path / "hf")
    (tmp_path / "hf" / "README.md").write_text("an older card")
    export_hf(STORED / "run" / "bundle", tmp_path / "hf", overwrite=True)
    stored, written = (
        {path.name: path.read_bytes() for path in folder.iterdir()} for folder in (STORED / "hf", tmp_path / "hf")
    )
    assert written == stored
    import_hf(STORED / "hf", tmp_path / "bundle")
    sentences = ["The old man sees a dog."]
    assert Translator.load(tmp_path / "bundle").translate(sentences) == Translator.load(STORED / "run").translate(
        sentences
    )


def test_an_export_for_marian_is_imported(tmp_path: Path) -> None:
    marian, vocabulary = STORED / "marian", STORED / "marian" / "vocab.spm"
    assert export_tool(marian) == "marian"
    import_marian(marian / "model.npz", [vocabulary, vocabulary], tmp_path / "bundle")
    (found,) = Scorer.load(tmp_path / "bundle").score(["The old man sees a dog."], ["Der alte Mann sieht einen Hund."])
    assert found.log_probability == pytest.approx(-164.78366, abs=1e-3)


def test_a_record_is_read() -> None:
    found = record.read(STORED / "record.json")
    assert (found.name, found.world_size, found.config.training.max_updates) == ("run", 2, 60)
    assert found.figures["test"]["chrf"] == pytest.approx(2.5739, abs=1e-4)
    assert found.corpus is not None
