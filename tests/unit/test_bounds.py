"""Files that would take memory, time or other files than their own are refused before they do."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.data.corpora import Rows, write_corpus
from support.training.manifests import change_manifest

from dstransformer.config.yaml_text import MAX_BYTES, parse_yaml
from dstransformer.data import Corpus, Tokenizer, tokenizer
from dstransformer.errors import ConfigError, DataError, shell_word, shown
from dstransformer.io.files import file_sha256, path_inside
from dstransformer.io.text import MAX_LINE_BYTES, iter_arriving, iter_lines
from dstransformer.model import open_bundle
from dstransformer.training.checkpoints.format import read_checkpoint, verify_checkpoint

STORED = Path(__file__).parents[1] / "data" / "formats" / "1" / "run"
ROWS: Rows = [([5, 6, 7], [8]), ([9], [10, 11])]


@pytest.mark.parametrize(("text", "complaint"), [
    ("a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{name}: &{name} [{','.join([f'*{old}'] * 9)}]\n" for old, name in zip("abcdefgh", "bcdefghi", strict=True)),
     "more than 20,000 values, with those that aliases repeat"),
    ("a: &a [*a]", "an alias repeats a value within itself"),
    ("a: &a {<<: *a}", "an alias repeats a value within itself"),
    ("#" * (MAX_BYTES + 1), "is larger than the 262,144 bytes"),
    ("[" * 5000, "nested too deeply"),
])  # fmt: skip
def test_yaml_bombs_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_yaml(text, "it")


def test_aliases_are_read() -> None:
    text = "a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 1e-9}\nd: [" + "7" * 100 + "]"
    assert parse_yaml(text, "it") == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 1e-9}, "d": [int("7" * 100)]}


def test_a_line_without_end_is_refused_before_it_fills_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    member = gzip.compress(b"a" * 2**20, 9)
    path.write_bytes(gzip.compress(b"one\n") + member * (MAX_LINE_BYTES // 2**20 + 1))
    complaint = "line 2: longer than 16,777,216 bytes; write one sentence per line"
    with pytest.raises(DataError, match=complaint):
        list(iter_lines(path))
    with path.open("rb") as file, pytest.raises(DataError, match=complaint):
        list(iter_arriving(file.fileno(), "it"))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_shard_is_refused(tmp_path: Path, compression: str) -> None:
    path = write_corpus(tmp_path / "corpus", ROWS)
    shard = next((path / "train").glob("*.arrow"))
    table = pa.ipc.open_stream(shard.read_bytes()).read_all()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(shard), "wb") as file, pa.ipc.new_stream(file, table.schema, options=options) as stream:
        stream.write_table(table)
    record = json.loads((path / "manifest.json").read_text())
    record["splits"]["train"]["shards"][0]["sha256"] = file_sha256(shard)
    (path / "manifest.json").write_text(json.dumps(record))
    with pytest.raises(DataError, match="its columns are compressed"):
        Corpus.open(path)


def test_a_tokenizer_is_measured_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "MAX_BYTES", 10)
    (tmp_path / "spm.model").write_bytes(b"a" * 11)
    with pytest.raises(DataError, match="it is larger than the 10 bytes"):
        Tokenizer.load(tmp_path / "spm.model")


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a//b", "a/./b", "a\0b", "a\nb", "b" * 256, "ä" * 128, "", "a/"]
)
def test_a_manifest_names_files_of_its_checkpoint_only(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "step-00000004"
    shutil.copytree(STORED / "checkpoints" / folder.name, folder)
    change_manifest(folder, lambda content: content.update(files={name: "0" * 64}))
    with pytest.raises(DataError, match=r"manifest\.json"):
        verify_checkpoint(read_checkpoint(folder))


@pytest.mark.parametrize(
    ("key", "value"), [("step", -1), ("step", "4"), ("step", True), ("world_size", 2**70), ("step", 1e3)]
)
def test_a_state_of_other_types_is_damage(tmp_path: Path, key: str, value: object) -> None:
    shutil.copytree(STORED / "checkpoints" / "step-00000004", tmp_path / "checkpoint")
    change_manifest(tmp_path / "checkpoint", lambda content: content["state"].update({key: value}))
    with pytest.raises(DataError, match=r"manifest\.json is damaged(?!: its content)"):
        read_checkpoint(tmp_path / "checkpoint")


def linked(folder: Path, store: Path) -> Path:
    """A folder as caches keep it: links to files in a store, named by their hash."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        blob = store / file_sha256(path)
        store.mkdir(exist_ok=True)
        shutil.move(path, blob)
        path.symlink_to(os.path.relpath(blob, path.parent))
    return folder


def test_links_are_followed_and_what_they_lead_to_is_compared_with_its_hash(tmp_path: Path) -> None:
    shutil.copytree(STORED / "bundle", tmp_path / "bundle")
    bundle = linked(tmp_path / "bundle", tmp_path / "blobs")
    assert open_bundle(bundle).load_weights()
    corpus = Corpus.open(linked(write_corpus(tmp_path / "corpus", ROWS), tmp_path / "blobs"))
    assert corpus.split("train").gather(np.array([1]))[0].tolist() == [9]
    (bundle / "tokenizer.model").unlink()
    (bundle / "tokenizer.model").symlink_to("/etc/passwd")
    with pytest.raises(DataError, match="does not match its hash"):
        open_bundle(bundle)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/stdin"])
def test_a_link_to_a_device_is_no_file(tmp_path: Path, device: str) -> None:
    shutil.copytree(STORED / "bundle", tmp_path / "bundle")
    (tmp_path / "bundle" / "provenance.json").unlink()
    if device == "/dev/stdin":
        os.mkfifo(tmp_path / "bundle" / "provenance.json")
    else:
        (tmp_path / "bundle" / "provenance.json").symlink_to(device)
    with pytest.raises(DataError, match=r"lacks provenance\.json"):
        open_bundle(tmp_path / "bundle")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "link", "bundle", ""])
def test_a_record_cannot_name_a_file_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    (run / "bundle").mkdir(parents=True)
    (run / "plot.png").touch()
    (tmp_path / "secret").touch()
    assert path_inside(run, "plot.png") == run / "plot.png"
    assert path_inside(run, "bundle") == run / "bundle"
    for link in (run / "link", run / "bundle" / "model.safetensors"):
        link.symlink_to(tmp_path / "secret")
    with pytest.raises(DataError, match="leads out of"):
        path_inside(run, name)


def test_no_escape_sequence_reaches_a_terminal() -> None:
    assert shown("a\x1b[31m\x9bb\u202e", quote=False) == r"a\x1b[31m\x9bb\u202e"
    assert shown("Zwölf 日本", quote=False) == "Zwölf 日本"


@pytest.mark.parametrize(
    "path", ["runs/a", "my runs/ünï'q", 'a&b;c#d?[e]%41"f$g`h\\', "two  spaces", "new\nline ü\\'", "\udcff"]
)
def test_a_path_in_a_message_is_one_word_of_a_shell(path: str) -> None:
    line = shown(f"run `dst track {shell_word(path)}`", quote=False, limit=1000)
    word = line.removeprefix("run `dst track ").removesuffix("`")
    printed = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert os.fsdecode(printed.stdout) == path
