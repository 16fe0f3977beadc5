"""No file can hurt its reader: it is read, or refused in one line; no crash, no hang, little memory."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import zstandard
from safetensors.torch import load_file
from support.faults.fuzzing import Target, fuzz, inputs_for_each
from support.services.serving import save_small_bundle

from data_prep.cli.page import render_report
from data_prep.recipe.options import FilesOptions
from data_prep.recipe.recipe import load_recipe
from data_prep.sources.files import open_files
from data_prep.sources.texts import iter_sentences, local_text
from data_prep.stages.dedup import Marked
from data_prep.stages.read import Read
from data_prep.store.chunks import write_chunk
from data_prep.store.pairs import PairsWriter, count_pairs, iter_pairs
from data_prep.store.workspace import StageRecord, Workspace
from dstransformer.config import compose, load_config, read_config
from dstransformer.config.schema import OPTIMIZERS
from dstransformer.data import Corpus, Tokenizer
from dstransformer.decoding.parts import _read_job
from dstransformer.evaluation.following import Results
from dstransformer.evaluation.published_sets import published_test_set
from dstransformer.exchange.ct2 import write_ct2
from dstransformer.exchange.ct2_engine import open_ct2
from dstransformer.extras.paper.table2 import format_table, read_run
from dstransformer.extras.paper.table3_report import Table, read_table
from dstransformer.extras.parsing.linearise import Linearisation
from dstransformer.extras.parsing.trees import normalise, read_trees
from dstransformer.extras.plots.curves import read_runs
from dstransformer.extras.rerank.reranking import iter_nbest
from dstransformer.io.files import file_sha256
from dstransformer.io.products import check_kind, kind_of
from dstransformer.io.progress import Progress
from dstransformer.io.text import iter_lines
from dstransformer.model import open_bundle
from dstransformer.tracking.metrics_log import first_time, last_time, read_records
from dstransformer.tracking.mlflow.location import TrackingState
from dstransformer.tracking.mlflow.outbox import Outbox
from dstransformer.tracking.mlflow.tracked_run import lacks_end
from dstransformer.training.checkpoints.format import read_checkpoint, verify_checkpoint
from dstransformer.training.checkpoints.listing import describe_checkpoints, list_checkpoints
from dstransformer.training.checkpoints.shards import WEIGHT, ShardReader

STORED = Path(__file__).parents[1] / "data" / "formats"
STEP = "checkpoints/step-00000004"
KINDS = (WEIGHT, *OPTIMIZERS["adam"].moments)
SIZES = {name: weight.numel() for name, weight in load_file(STORED / "1/run/bundle/model.safetensors").items()}


def stored(name: str) -> Callable[[Path], object]:
    """Copies a folder of the stored formats."""
    return lambda folder: shutil.copytree(STORED / name, folder, dirs_exist_ok=True)


def text(name: str, content: str) -> Callable[[Path], object]:
    """Writes one file."""
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


def lines(name: str, *records: dict[str, Any]) -> Callable[[Path], object]:
    """Writes a file of JSON lines."""
    return text(name, "".join(json.dumps(record) + "\n" for record in records))


def read_corpus(folder: Path) -> None:
    corpus = Corpus.open(folder)
    for name in corpus.splits:
        split = corpus.split(name)
        split.gather(np.arange(len(split)))
        if split.info.has_text:
            split.src_texts()


def read_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    ids = tokenizer.encode(["Ein Hund rennt.", "\u00e4\u2028 a", "", "x" * 300], threads=1)
    tokenizer.decode(ids)
    tokenizer.pieces(range(tokenizer.vocab_size))
    assert tokenizer.model_type
    tokenizer.scores()


def read_bundle(folder: Path) -> None:
    bundle = open_bundle(folder)
    assert bundle.weights_sha256
    bundle.training_config()
    bundle.build_model()


def read_state(folder: Path) -> None:
    checkpoint = read_checkpoint(folder)
    verify_checkpoint(checkpoint)
    read_shards(checkpoint.shards)


def read_shards(folder: Path) -> None:
    with ShardReader(folder) as shards:
        shards.check(SIZES, dict.fromkeys(SIZES, KINDS))
        for kind in KINDS:
            for name, size in SIZES.items():
                shards.read(kind, name, 0, torch.empty(size))


def read_run_folder(folder: Path) -> None:
    describe_checkpoints(list_checkpoints(folder, verify=True), verified=True)
    format_table([read_run(folder)])


def read_metrics(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    first_time(path)
    last_time(path)
    list(read_records(path, skip_damaged=False))
    read_runs([folder])


def make_trees(folder: Path) -> None:
    tree = "(S (NP-SBJ-1 (DT The) (NN cat)) (VP (VBZ sits) (NP (-NONE- *-1))) (. .))\n"
    (folder / "a.mrg").write_text(f"*x* notice\n( {tree})\n{tree}")
    (folder / "b.mrg.gz").write_bytes(gzip.compress(tree.encode()))


def read_treebank(folder: Path) -> None:
    for located in read_trees(str(folder)):
        tree = normalise(located.tree)
        if tree is not None:
            Linearisation("keep", "label").write(tree)
            tree.draw()


def make_texts(folder: Path) -> None:
    (folder / "a.txt").write_text("One line.\nZwölf Boxkämpfer.\r\n\n")
    for ending, compress in (
        ("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress), ("zst", zstandard.compress),
    ):  # fmt: skip
        (folder / f"b.txt.{ending}").write_bytes(compress(b"One line.\n" * 20))


def make_test_sets(folder: Path) -> None:
    """FLORES+ in both layouts, and WMT24++."""
    (folder / "dev").mkdir()
    (folder / "devtest").mkdir()
    rows = [{"id": number, "text": text} for number, text in enumerate(("One.", "Two.", "Three."))]
    for code in ("eng_Latn", "deu_Latn"):
        pq.write_table(pa.Table.from_pylist(rows), folder / "dev" / f"{code}.parquet")
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "devtest" / f"{code}.jsonl").write_text(lines, encoding="utf-8")
    record = {"source": "One.", "target": "Eins.", "is_bad_source": False}
    (folder / "en-de_DE.jsonl").write_text(f"{json.dumps(record)}\n" * 3, encoding="utf-8")


def read_test_sets(folder: Path) -> None:
    for kind in ("flores200", "flores200/dev", "wmt24pp"):
        published_test_set(f"{kind}:{folder}", "en-de")


def make_sources(folder: Path) -> None:
    pairs = [{"en": f"Dog {n}.", "de": f"Hund {n}."} for n in range(5)]
    lines("a.jsonl", *pairs, {"translation": pairs[0]})(folder)
    text("b.tsv", "".join(f"{pair['en']}\t{pair['de']}\n" for pair in pairs))(folder)
    pq.write_table(pa.Table.from_pylist(pairs), folder / "c.parquet")
    with zipfile.ZipFile(folder / "d.txt.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for side in ("en", "de"):
            archive.writestr(f"Dogs.de-en.{side}", "".join(f"{pair[side]}\n" for pair in pairs))


def read_sources(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        options = FilesOptions(src_lang="en", tgt_lang="de", train=path, valid_size=1)
        for table in open_files(options).splits["train"]():
            assert table.column_names == ["src", "tgt", "file"]


def make_memories(folder: Path) -> None:
    sides = [[("en-US", f"A <ph>x</ph>dog {n}."), ("de", f"Ein &lt; Hund {n}.")] for n in range(5)]
    units = ["".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in side) for side in sides]
    body = "".join(f"<tu>{unit}</tu>" for unit in units)
    memory = f'<?xml version="1.0"?>\n<tmx version="1.4"><body>\n{body}</body></tmx>'
    (folder / "a.tmx").write_text(memory)
    (folder / "b.tmx.gz").write_bytes(gzip.compress(memory.encode("utf-16")))
    segments = '<p><seg id="1">One</seg><seg id="2">Two</seg></p>'
    document = f'<doc id="a"><src lang="en">{segments}</src><ref lang="de" translator="A">{segments}</ref></doc>'
    (folder / "c.xml").write_text(f'<dataset id="x"><collection>{document}</collection></dataset>')


def make_arrows(folder: Path) -> None:
    table = pa.table({"en": ["A dog.", "Zwölf"], "de": ["Ein Hund.", ""], "n": [[1], None]})
    for name, make, compression in (
        ("a.arrow", pa.ipc.new_stream, None), ("b.arrow", pa.ipc.new_file, None), ("c.feather", pa.ipc.new_file, "lz4"),
        ("d.arrow", pa.ipc.new_stream, "zstd"),
    ):  # fmt: skip
        with make(folder / name, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(table)


MEMBERS = {"texts/a.txt": b"One line.\nTwo.\n" * 9, "b.sgm": b'<seg id="1"> One. </seg>\n<seg id="2"> Two. </seg>\n'}


def make_archives(folder: Path) -> None:
    for name, mode, form in (
        ("a.tar", "w:", tarfile.PAX_FORMAT), ("b.tar.gz", "w:gz", tarfile.GNU_FORMAT),
        ("c.tar.xz", "w:xz", tarfile.PAX_FORMAT),
    ):  # fmt: skip
        with tarfile.open(folder / name, mode, format=form) as tar:  # type: ignore[call-overload]
            tar.addfile(tarfile.TarInfo(f"{'long' * 50}/ä"))
            for member, content in MEMBERS.items():
                entry = tarfile.TarInfo(member)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    with zipfile.ZipFile(folder / "d.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in MEMBERS.items():
            archive.writestr(member, content)


def read_archives(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        for member in MEMBERS:
            list(iter_sentences(local_text(Path(f"{path}::{member}"))))


def make_work(folder: Path) -> None:
    stage = folder / "read"
    stage.mkdir()
    with PairsWriter(stage / "train.arrow") as writer:
        writer.write(pa.table({"src": ["a", "b"], "tgt": ["c", "d"], "part": [0, 0], "low": [False, False]}))
    record = StageRecord(
        key="k",
        after="",
        options={"src_lang": "en"},
        report={},
        files={"train.arrow": file_sha256(stage / "train.arrow")},
    )
    (stage / "stage.json").write_text(record.model_dump_json())
    (folder / "chunks").mkdir()
    write_chunk(folder / "chunks" / "marked-000000", Marked, write_marks)


def write_marks(folder: Path) -> Marked:
    (folder / "marks").write_bytes(b"\1\0\1")
    return Marked(distinct=2)


def read_work(folder: Path) -> None:
    work = Workspace(folder, Progress(), (Read,))
    work.finished(Read)
    work.verify(Read)
    write_chunk(folder / "chunks" / "marked-000000", Marked, write_marks)
    path = folder / "read" / "train.arrow"
    count_pairs(path)
    for batch in iter_pairs(path):
        batch["src"].to_pylist()


RECORDS = [
    {"op": "start", "tags": {"a": "b"}}, {"op": "metrics", "metrics": [["train/loss", 1.5, 1_700_000_000_000, 3]]},
    {"op": "finish"},
]  # fmt: skip


def make_outbox(folder: Path) -> None:
    outbox = Outbox(folder)
    for record in RECORDS:
        outbox.put(record)
    outbox.mark(next(outbox.batches()), accepted=True)


def read_outbox(folder: Path) -> None:
    outbox = Outbox(folder)
    lacks_end(outbox)
    outbox.pending()
    for batch in outbox.batches():
        outbox.mark(batch, accepted=True)
    outbox.rewind()
    outbox.put({"op": "tags"})


def read_kind(folder: Path) -> None:
    assert kind_of(folder) in (None, "run")
    check_kind(folder, "run", "name a run")


def make_ct2(folder: Path) -> None:
    bundle = open_bundle(save_small_bundle(folder.parent / "exported"))
    write_ct2(bundle, folder / "model", "float32")


HYPOTHESIS = {"line": 1, "source": "a", "text": "b", "log_probability": -1.5, "tokens": 2, "reverse_log_probability": 0}
RESULT = {"format_version": 1, "checkpoint": "step-1", "weights_sha256": "0", "test_set": {"digest": "1"}}
PRESET = "extends: base\nmodel: {num_layers: 2, dropout: 0.2}\nbatch:\n  src_tokens: 50\n"
RECIPE = "extends: toy\nsources:\n  toy: {pairs: 300}\nclean: {max_words: 100}\nvocab: {vocab_size: 500}\n"
FRAGMENT = {"zero_optimization": {"stage": 2, "reduce_bucket_size": 500, "offload_optimizer": {"device": "cpu"}}}
JOB = {"format_version": 1, "input": {"size": 3, "changed_ns": 4}, "asked": {"models": ["a"]}, "part_lines": 5}
ADDRESS = {"tracking_uri": "http://me:***@host:5000", "experiment": "e", "run_id": "0123"}

TARGETS = [
    Target("corpus", stored("1/corpus"), read_corpus, ("**/*.json", "**/*.arrow", "**/*.model"), hashes=True),
    Target("manifest", stored("1/corpus"), read_corpus, ("manifest.json",)),
    Target("shards", stored("1/corpus"), read_corpus, ("**/*.arrow",), hashes=True),
    Target("tokenizer", stored("1/corpus"), read_tokenizer, ("tokenizer.model",)),
    Target("bundle", stored("1/run/bundle"), read_bundle, hashes=True),
    Target("weights", stored("1/run/bundle"), read_bundle, ("*.safetensors",), hashes=True),
    Target("checkpoint", stored(f"1/run/{STEP}"), read_state, ("manifest.json", "state/*"), hashes=True),
    Target("shards", stored(f"1/run/{STEP}/state"), read_shards),
    Target("run", stored("1/run"), read_run_folder, (f"{STEP}/*.json", "*.jsonl", "bundle/*.json"), hashes=True),
    Target("configuration", stored("1/run"), lambda folder: read_config(folder / "config.yaml"), ("config.yaml",)),
    Target("metrics", stored("1/run"), read_metrics, ("metrics.jsonl",)),
    Target("preset", text("mine.yaml", PRESET), lambda folder: load_config(str(folder / "mine.yaml"))),
    Target("recipe", text("mine.yaml", RECIPE), lambda folder: load_recipe(str(folder / "mine.yaml"))),
    Target("set", text("value.txt", "model.dropout=0.25"),
           lambda folder: load_config("toy", [(folder / "value.txt").read_bytes().decode("utf-8", "surrogateescape")])),
    Target("deepspeed", text("mine.json", json.dumps(FRAGMENT)),
           lambda folder: compose(load_config("toy", fragments=[str(folder / "mine.json"), "bf16"]), 1)),
    Target("trees", make_trees, read_treebank),
    Target("texts", make_texts, lambda folder: [list(iter_lines(path)) for path in folder.iterdir()]),
    Target("n-best", lines("list.jsonl", HYPOTHESIS, HYPOTHESIS | {"line": 2}),
           lambda folder: list(iter_nbest(str(folder / "list.jsonl")))),
    Target("sources", make_sources, read_sources),
    Target("test-sets", make_test_sets, read_test_sets),
    Target("memories", make_memories, read_sources),
    Target("arrow", make_arrows, read_sources),
    Target("archives", make_archives, read_archives),
    Target("segments", text("a.sgm", '<doc>\n<seg id="1"> One. </seg>\n<seg id="2">Two.</seg><seg>3</seg>\n</doc>\n'),
           lambda folder: list(iter_sentences(local_text(folder / "a.sgm")))),
    Target("report", stored("1/corpus"), lambda folder: render_report(Corpus.open(folder, verify=False), "x"),
           ("**/*.json", "**/*.arrow", "**/*.model"), hashes=True),
    Target("work-folder", make_work, read_work, hashes=True),
    Target("outbox", make_outbox, read_outbox),
    Target("tracking", text("tracking.json", json.dumps(ADDRESS)), TrackingState.load),
    Target("table3", text("table3.json", json.dumps(Table(settings={"scale": 1}, rows={}).to_json())),
           lambda folder: read_table(folder / "table3.json")),
    Target("evaluations", lines("evaluations.jsonl", RESULT, RESULT), Results),
    Target("job", text("job.json", json.dumps(JOB)), lambda folder: _read_job(folder / "job.json")),
    Target("kind", stored("1/run"), read_kind, ("dst.json",)),
    # CTranslate2 itself reads model.bin.
    Target("ct2", make_ct2, lambda folder: open_ct2(folder / "model", threads=1).describe(),
           ("*/dst.json", "*/tokenizer.model"), hashes=True),
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_damaged_file_is_read_or_refused_in_one_line(target: Target, tmp_path: Path) -> None:
    if target.name == "ct2":
        pytest.importorskip("ctranslate2")
    fuzz(target, tmp_path, inputs_for_each(len(TARGETS)))
