"""A build replaces or removes only what a build made, and refuses folders inside other products."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.data.corpora import Rows, write_corpus
from support.data.prep import contents, refuses

from data_prep.build import STAGES
from data_prep.cli import main
from data_prep.stages.read import Read
from data_prep.store.output import check_paths, find_corpus, foreign_entries, install, open_output, resolve_output
from data_prep.store.workspace import hold, open_workspace
from dstransformer.data import Corpus
from dstransformer.errors import UserError
from dstransformer.io.products import write_marker
from dstransformer.io.progress import Progress

ROWS: Rows = [([5, 6, 7], [8]), ([9], [10, 11]), ([12, 13], [14, 15, 16]), ([300], [17]), ([18, 19], [20])]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus", ROWS)


def put(path: Path, text: str = "mine") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def link_a_shard(corpus: Path) -> None:
    shard = corpus / "train" / "data-00000-of-00002.arrow"
    shard.rename(corpus.parent / "moved")
    shard.symlink_to(corpus.parent / "moved")


@pytest.mark.parametrize(("add", "wanted"), [
    (lambda corpus: put(corpus / "notes.txt"), "notes.txt"),
    (lambda corpus: put(corpus / "run" / "config.yaml"), "run"),
    (lambda corpus: put(corpus / "train" / "checkpoint.bin"), "train/checkpoint.bin"),
    (lambda corpus: (corpus / "validation" / "data-00000-of-00001.arrow.d").mkdir(), "validation/data-00000"),
    (lambda corpus: (corpus / "test").symlink_to("train"), "test"),
    (link_a_shard, "train/data-00000-of-00002.arrow"),
])  # fmt: skip
def test_a_corpus_with_foreign_files_is_not_replaced(corpus: Path, add: Callable[[Path], object], wanted: str) -> None:
    assert foreign_entries(corpus) == []
    assert find_corpus(corpus, "another key", overwrite=True) is None
    add(corpus)
    before = contents(corpus)
    with pytest.raises(UserError, match=rf"\({wanted}"):
        find_corpus(corpus, "another key", overwrite=True)
    write_corpus(corpus.parent / "new", ROWS)
    with pytest.raises(UserError, match="not part of a corpus"):  # the file may have appeared during the build
        install(corpus.parent / "new", corpus, overwrite=True)
    assert contents(corpus) == before


def test_a_corpus_that_appears_during_a_build_is_not_replaced(corpus: Path) -> None:
    new = write_corpus(corpus.parent / "new", ROWS)
    with pytest.raises(UserError, match="another program"):
        install(new, corpus, overwrite=False)
    assert Corpus.open(corpus).splits == ("train", "validation")


def test_a_killed_replacement_leaves_the_old_corpus(
    corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    replace = Path.replace

    def rename(self: Path, target: Path) -> Path:
        if target == corpus:
            raise Killed
        replace(self, target)
        return target

    before = contents(corpus)
    new = write_corpus(corpus.parent / "new", ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            install(new, corpus, overwrite=True)
    assert names(corpus.parent) == {".corpus.replaced", "new"}
    with open_output(corpus, Progress()):
        assert contents(corpus) == before
    assert "corpus is restored" in capsys.readouterr().err
    install(new, corpus, overwrite=True)
    assert names(corpus.parent) == {"corpus"}


def test_a_users_folders_with_similar_names_are_left_alone(corpus: Path) -> None:
    for name in ("corpus.old", "corpus.partial", ".corpus.replaced"):
        put(corpus.parent / name / "model.bin")
    with pytest.raises(UserError, match=r"\.corpus\.replaced"):
        open_output(corpus, Progress()).__enter__()
    (corpus.parent / ".corpus.replaced").rename(corpus.parent / ".corpus.partial")
    with pytest.raises(UserError, match=r"\.corpus\.partial"):
        open_output(corpus, Progress()).__enter__()
    (corpus.parent / ".corpus.partial").rename(corpus.parent / "kept")
    with open_output(corpus, Progress()) as unfinished:
        write_corpus(unfinished, ROWS)
        install(unfinished, corpus, overwrite=True)
    assert names(corpus.parent) == {"corpus", "corpus.old", "corpus.partial", "kept"}
    assert {path.read_text() for path in corpus.parent.rglob("model.bin")} == {"mine"}


def test_an_output_is_written_by_one_build_at_a_time(corpus: Path) -> None:
    with open_output(corpus, Progress()) as unfinished:
        write_corpus(unfinished, ROWS)
        with pytest.raises(UserError, match=str(corpus)):
            open_output(corpus, Progress()).__enter__()
        assert Corpus.open(unfinished).splits == ("train", "validation")
    assert names(corpus.parent) == {"corpus"}


def test_nested_folders_are_refused(corpus: Path) -> None:
    base = corpus.parent
    for kind in ("bundle", "run"):
        (base / kind).mkdir()
        write_marker(base / kind, kind)
    (base / "copy" / "de-en").mkdir(parents=True)
    put(base / "work" / "read" / "stage.json")
    (base / "work" / "lock").touch()
    text = put(base / "text" / "src.txt")
    for out, work, wanted in (
        ("new", "new", "--work and --out are both"),
        ("new", "new/work", "lies inside --out"),
        ("work/new", "work", "lies inside --work"),
        ("corpus/new", "work", "lies inside the corpus"),
        ("corpus/train/new", "work", "lies inside the corpus"),
        ("new", "corpus/work", "lies inside the corpus"),
        ("bundle/new", "work", "lies inside the bundle"),
        ("run/new", "work", "lies inside the run"),
        ("run/checkpoints/step-1/new", "elsewhere", "lies inside the checkpoints"),
        ("work/read/new", "elsewhere", "lies inside the work folder"),
        ("copy/new", "work", "lies inside the input folder"),
        ("text", "work", r"src\.txt lies inside --out"),
    ):
        with pytest.raises(UserError, match=wanted):
            check_paths(base / out, base / work, [text, base / "copy", None])
    check_paths(base / "text.corpus", base / "work", [text, base / "copy"])
    check_paths(base / "text" / "corpus", base / "text" / "corpus.work", [text])
    check_paths(corpus, base / "work", [corpus / "tokenizer.model"])


def test_outputs_that_cannot_be_replaced_are_refused(corpus: Path) -> None:
    base = corpus.parent
    (base / "link").symlink_to(corpus)
    assert resolve_output(base / "link") == corpus
    (base / "dangling").symlink_to(base / "nowhere")
    (base / "loop").symlink_to(base / "loop")
    for path in (base / "dangling", base / "loop"):
        with pytest.raises(UserError, match="is a link"):
            resolve_output(path)
    for path in (Path("/"), Path("/proc")):
        with pytest.raises(UserError, match="is the root of a file system"):
            resolve_output(path)
    for path in (put(base / "file"), Path("/dev/null")):
        with pytest.raises(UserError, match="exists and is not a corpus"):
            resolve_output(path)


class TestWorkFolder:
    def test_another_kind_of_folder_is_refused_before_anything_is_written(self, tmp_path: Path) -> None:
        put(tmp_path / "data" / "read" / "thesis.txt")
        before = contents(tmp_path)
        with pytest.raises(UserError, match="holds read"):
            open_workspace(tmp_path / "data", Progress(), STAGES).__enter__()
        assert contents(tmp_path) == before

    def test_foreign_files_are_kept(self, tmp_path: Path) -> None:
        work = tmp_path / "work"
        with open_workspace(work, Progress(), STAGES) as workspace:
            for name in ("read", "clean"):
                put(work / name / "stage.json")
            put(work / "notes.txt")
            put(work / "read" / "thesis.txt")
            with pytest.raises(UserError, match=r"read .*thesis\.txt"):
                workspace.run(Read([]), 1)
            workspace.clear()
        assert {str(path.relative_to(work)) for path in work.rglob("*") if path.is_file()} == {
            "notes.txt",
            "read/stage.json",
            "read/thesis.txt",
        }

    def test_a_lock_file_that_was_removed_is_created_again(self, tmp_path: Path) -> None:
        work = tmp_path / "work"
        with hold(work, "busy"):
            (work / "lock").unlink()
            with hold(work, "busy"), pytest.raises(UserError, match="busy"):
                hold(work, "busy").__enter__()


def text_files(corpus: Path, *options: str) -> int:
    base = corpus.parent
    files = ["--src", str(base / "src.txt"), "--tgt", str(base / "tgt.txt")]
    return main(["text", str(corpus), "--split", "validation", *files, *options])


def test_text_replaces_files_only_when_asked(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = corpus.parent
    put(base / "tgt.txt")
    message = refuses(capsys, text_files(corpus))
    assert str(base / "tgt.txt") in message
    assert "--overwrite" in message
    assert names(base) == {"corpus", "tgt.txt"}
    assert (base / "tgt.txt").read_text() == "mine"
    assert text_files(corpus, "--overwrite") == 0
    assert (base / "tgt.txt").read_text().splitlines() == Corpus.open(corpus).split("validation").tgt_texts()
    assert "both" in refuses(capsys, text_files(corpus, "--src", str(base / "tgt.txt")))
    inside = str(corpus / "manifest.json")
    assert "lies inside the corpus" in refuses(capsys, text_files(corpus, "--overwrite", "--src", inside))
    assert json.loads((corpus / "manifest.json").read_text())["build_key"] == "key"


def test_text_from_a_damaged_shard_is_refused(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = corpus / "validation" / "data-00000-of-00001.arrow"
    content = bytearray(shard.read_bytes())
    content[content.index(b"brown")] = ord("B")
    shard.write_bytes(content)
    assert f"{shard} is damaged" in refuses(capsys, text_files(corpus))
    assert names(corpus.parent) == {"corpus"}


def test_text_writes_both_files_or_none(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = corpus.parent
    refuses(capsys, text_files(corpus, "--tgt", str(base / "none" / "tgt.txt")), code=1)
    assert names(base) == {"corpus"}


def test_text_goes_to_standard_output(corpus: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert text_files(corpus, "--src", "-", "--tgt", "/dev/null") == 0
    texts = Corpus.open(corpus).split("validation").src_texts()
    assert capfdbinary.readouterr().out.decode().splitlines() == texts
    assert names(corpus.parent) == {"corpus"}
