"""``dst-prep`` as a user runs it: whole builds, interrupted builds, and every kind of bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.cli import main
from data_prep.progress import LineProgress
from data_prep.workspace import open_workspace
from dstransformer.corpus import Corpus

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED_DATA = Path(os.environ.get("DST_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
MULTI30K = SHARED_DATA / "multi30k"

ENGLISH = "the old new red dog cat sees a"
GERMAN = "der alte neue rote Hund sieht ein Ä"
FRENCH = "le vieux la neuve rouge chien voit un"


def sentence(number: int, words: str) -> str:
    names = words.split()
    return " ".join(names[number // len(names) ** k % len(names)] for k in range(4)) + f" {number}."


@pytest.fixture
def text(tmp_path: Path) -> Callable[..., list[str]]:
    """Writes a text of so many pairs and returns the options of a build from it."""

    def write(pairs: int = 600, folder: Path = tmp_path / "text") -> list[str]:
        folder.mkdir(exist_ok=True)
        options = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--vocab-size", "400"]
        for split, numbers in (("", range(pairs)), ("valid-", range(pairs, pairs + 30))):
            for side, words in (("src", ENGLISH), ("tgt", GERMAN)):
                path = folder / f"{split}{side}.txt"
                path.write_text("".join(sentence(number, words) + "\n" for number in numbers))
                options += [f"--{split}{side}", str(path)]
        return options

    return write


def build(*options: str | Path) -> int:
    return main(["build", "--workers", "1", *map(str, options)])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refuses(capsys: pytest.CaptureFixture[str], status: int, code: int = 2) -> str:
    """The single line with which a command refused."""
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("dst-prep: error: ")]
    assert status == code
    assert len(errors) == 1, lines
    assert errors[0] == lines[-1]
    return errors[0]


def test_a_build_holds_what_was_given(
    tmp_path: Path, text: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "corpora" / "corpus"
    assert build(*text(), "--shard-rows", "250", "--out", out) == 0
    assert "length_ratio" in capsys.readouterr().out
    assert sorted(path.name for path in out.parent.iterdir()) == ["corpus"]
    corpus = Corpus.open(out)
    train, validation = corpus.split("train"), corpus.split("validation")
    assert (len(train), len(validation)) == (600, 30)
    assert [shard.rows for shard in train.info.shards] == [250, 250, 100]
    flat, lengths, _, _ = train.gather(np.arange(600))
    decoded = corpus.tokenizer.decode([part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])])
    assert decoded == (tmp_path / "text" / "src.txt").read_text().splitlines()
    assert validation.tgt_texts() == (tmp_path / "text" / "valid-tgt.txt").read_text().splitlines()
    assert datasets.load_from_disk(str(out))["train"].num_rows == 600
    assert main(["verify", str(out)]) == main(["info", str(out)]) == 0
    capsys.readouterr()
    assert main(["info", "--json", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["train"]["pairs"] == 600


def test_builds_and_single_stages_give_the_same_bytes(tmp_path: Path, text: Callable[..., list[str]]) -> None:
    options = text(5000)
    assert build(*options, "--out", tmp_path / "one") == 0
    assert main(["build", "--workers", "2", *options, "--out", str(tmp_path / "elsewhere" / "two")]) == 0
    at = options.index("--vocab-size")
    source, vocab = options[:at] + options[at + 2 :], options[at : at + 2]
    work = ["--work", str(tmp_path / "work")]
    assert main(["read", *work, *source]) == 0
    assert main(["clean", *work]) == 0
    assert main(["vocab", *work, *vocab]) == 0
    assert main(["encode", *work, "--out", str(tmp_path / "three")]) == 0
    one = contents(tmp_path / "one")
    assert one == contents(tmp_path / "elsewhere" / "two")
    assert one == contents(tmp_path / "three")
    assert not [name for name, content in one.items() if str(tmp_path).encode() in content]


def test_stages_out_of_order_are_refused(
    tmp_path: Path, text: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    work = ["--work", str(tmp_path / "work")]
    options = text()
    at = options.index("--vocab-size")
    source = options[:at] + options[at + 2 :]
    assert "has no finished stage 'read'" in refuses(capsys, main(["clean", *work]))
    assert main(["read", *work, *source]) == main(["clean", *work]) == 0
    assert main(["vocab", *work, "--vocab-size", "400"]) == 0
    assert main(["clean", *work, "--no-dedup"]) == 0
    message = refuses(capsys, main(["encode", *work, "--out", str(tmp_path / "corpus")]))
    assert "the stage 'vocab'" in message
    assert "was made from other text or options" in message
    assert not (tmp_path / "corpus").exists()


def test_an_existing_corpus_is_kept_or_replaced_only_when_asked(
    tmp_path: Path, text: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    out, options = tmp_path / "corpus", text()
    assert build(*options, "--out", out) == 0
    made = out.stat().st_ino
    assert build(*options, "--out", out) == 0
    assert "is already built from these inputs" in capsys.readouterr().err
    assert "--overwrite" in refuses(capsys, build(*options, "--max-words", "9", "--out", out))
    assert out.stat().st_ino == made
    assert build(*options, "--max-words", "9", "--out", out, "--overwrite") == 0
    assert out.stat().st_ino != made
    shard = out / "train" / "data-00000-of-00001.arrow"
    shard.write_bytes(shard.read_bytes()[:-9] + b"x" + shard.read_bytes()[-8:])
    assert "is damaged" in refuses(capsys, build(*options, "--max-words", "9", "--out", out))
    assert "is damaged" in refuses(capsys, main(["verify", str(out)]))
    assert build(*options, "--max-words", "9", "--out", out, "--overwrite") == 0
    assert main(["verify", str(out)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"text", "corpus"}
    assert "is not a corpus" in refuses(capsys, build(*options, "--out", tmp_path / "text", "--overwrite"))


@pytest.mark.parametrize("stage", ["read", "clean", "vocab"])
def test_a_killed_build_leaves_no_corpus_and_goes_on(
    tmp_path: Path, text: Callable[..., list[str]], stage: str
) -> None:
    options, out, work = text(60_000), tmp_path / "corpus", tmp_path / "corpus.work"
    command = [sys.executable, "-m", "data_prep", "build", *options, "--workers", "2", "--out", str(out)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE)
    while not (work / stage).exists():
        assert process.poll() is None
        time.sleep(0.002)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert psutil.wait_procs(children, timeout=20)[1] == []
    assert not out.exists()
    resumed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert f"{stage}: finished before, reused" in resumed.stderr
    assert build(*options, "--out", tmp_path / "uninterrupted") == 0
    assert contents(out) == contents(tmp_path / "uninterrupted")
    assert {path.name for path in tmp_path.iterdir()} == {"text", "corpus", "uninterrupted"}


def test_an_interrupt_from_the_keyboard_says_how_to_go_on(tmp_path: Path, text: Callable[..., list[str]]) -> None:
    options, out, work = text(60_000), tmp_path / "corpus", tmp_path / "corpus.work"
    command = [sys.executable, "-m", "data_prep", "build", *options, "--workers", "2", "--out", str(out)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (work / "vocab").exists():
        assert process.poll() is None
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)
    lines = process.communicate()[1].splitlines()
    assert process.returncode == 130
    assert lines[-1] == "dst-prep: interrupted; the same command goes on from the last finished stage"
    assert not any("Traceback" in line for line in lines)
    assert not out.exists()
    assert {path.name for path in work.iterdir()} == {"read", "clean", "vocab", "lock"}
    assert {path.name for path in tmp_path.iterdir()} == {"text", "corpus.work"}


def test_other_inputs_start_over(tmp_path: Path, text: Callable[..., list[str]]) -> None:
    options, out, work = text(), tmp_path / "corpus", tmp_path / "corpus.work"
    assert build(*options, "--vocab-size", "90000", "--out", out) == 2
    assert {path.name for path in work.iterdir()} == {"read", "clean", "lock"}
    text(700)
    assert build(*options, "--out", out) == 0
    assert len(Corpus.open(out).split("train")) == 700
    assert not work.exists()


def test_a_vocabulary_that_is_too_large_names_the_largest(
    tmp_path: Path, text: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    out, options = tmp_path / "corpus", text()
    message = refuses(capsys, build(*options, "--vocab-size", "90000", "--out", out))
    largest = message.split("at most ")[1].split(",")[0]
    assert build(*options, "--vocab-size", largest, "--out", out) == 0
    assert "clean: finished before, reused" in capsys.readouterr().err
    assert Corpus.open(out).tokenizer.vocab_size == int(largest)


def test_a_tokenizer_is_reused(
    tmp_path: Path, text: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    options = text()
    assert build(*options, "--out", tmp_path / "one") == 0
    model = tmp_path / "one" / "tokenizer.model"
    given = ["--tokenizer-model", model, "--out", tmp_path / "two"]
    assert "leave out --tokenizer and --vocab-size" in refuses(capsys, build(*options, *given))
    at = options.index("--vocab-size")
    assert build(*options[:at], *options[at + 2 :], *given) == 0
    one, two = Corpus.open(tmp_path / "one"), Corpus.open(tmp_path / "two")
    assert one.tokenizer.sha256 == two.tokenizer.sha256
    assert two.manifest.tokenizer.kind == "given"
    assert one.manifest.splits == two.manifest.splits


def test_long_pairs_are_dropped_from_training_only(tmp_path: Path, text: Callable[..., list[str]]) -> None:
    options = text()
    for side in ("src", "tgt"):
        with (tmp_path / "text" / f"{side}.txt").open("a") as file:
            file.write("x " * 200 + "\n")
        (tmp_path / "text" / f"valid-{side}.txt").write_text("x " * 200 + "\n\n")
    assert build(*options, "--max-tokens", "100", "--out", tmp_path / "corpus") == 0
    corpus = Corpus.open(tmp_path / "corpus")
    assert corpus.manifest.cleaning.dropped["too_many_tokens"] == 1
    assert len(corpus.split("train")) == corpus.manifest.cleaning.kept == 600
    assert corpus.split("validation").src_lengths.tolist() == [200, 0]
    assert corpus.split("validation").src_texts() == ["x " * 200, ""]


def spoil_length(folder: Path) -> str:
    with (folder / "tgt.txt").open("a") as file:
        file.write("noch einer\n")
    return "src.txt has 600 lines but "


def spoil_encoding(folder: Path) -> str:
    (folder / "src.txt").write_bytes((folder / "src.txt").read_bytes().replace(b" 34.", b" \xf6 34.", 1))
    return "src.txt, line 35, byte "


def spoil_empty(folder: Path) -> str:
    (folder / "valid-tgt.txt").write_text("")
    return "valid-tgt.txt is empty"


def spoil_missing(folder: Path) -> str:
    (folder / "src.txt").unlink()
    return "src.txt: No such file or directory"


def spoil_everything(folder: Path) -> str:
    for side in ("src", "tgt"):
        (folder / f"{side}.txt").write_text(" \n" * 5)
    return "cleaning left none of 5 training pairs (empty 5)"


@pytest.mark.parametrize("spoil", [spoil_length, spoil_encoding, spoil_empty, spoil_missing, spoil_everything])
def test_bad_text_is_refused_and_leaves_no_corpus(
    tmp_path: Path,
    text: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], str],
) -> None:
    options, out = text(), tmp_path / "corpus"
    wanted = spoil(tmp_path / "text")
    assert wanted in refuses(capsys, build(*options, "--out", out))
    left = {path.name for path in tmp_path.iterdir()} - {"text"}
    assert left == ({"corpus.work"} if spoil is spoil_everything else set())
    assert not list(tmp_path.glob("corpus.work/*.partial"))


def test_bad_options_are_refused(
    tmp_path: Path, text: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "corpus"
    for options, wanted in (
        (["--source", "files", "--src-lang", "en"], "--tgt-lang is missing"),
        (["--source", "toy", "--src-lang", "fr"], "the toy source has English and German, not fr-de"),
        (["--source", "wmt14", "--pair", "fr-en", "--tgt-lang", "de"], "--pair fr-en has no direction en-de"),
        ([*text(), "--shard-rows", "9000000"], "more than 2^31 tokens"),
    ):
        assert wanted in refuses(capsys, build(*options, "--out", out))
    with pytest.raises(SystemExit, match="2"):
        build(*text(), "--max-ratio", "0.5", "--out", out)
    assert {path.name for path in tmp_path.iterdir()} == {"text"}


def test_commands_on_what_is_no_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("info", "verify"):
        assert "is not a corpus" in refuses(capsys, main([command, str(tmp_path)]))
        assert "is not a corpus" in refuses(capsys, main([command, str(tmp_path / "none")]))


def test_a_second_build_at_the_same_time_is_refused(
    tmp_path: Path, text: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "corpus"
    with open_workspace(tmp_path / "corpus.work", LineProgress()):
        assert "another build is at work in" in refuses(capsys, build(*text(), "--out", out))
    assert build(*text(), "--out", out) == 0


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system in memory with the given options; needs root."""
    folder = tmp_path / "mount"
    folder.mkdir()

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a tmpfs needs root")
        return folder

    yield mount
    subprocess.run(["umount", str(folder)], capture_output=True, check=False)


@pytest.mark.parametrize("size", ["200k", "1m", "5m"])
def test_no_room_on_disk(
    text: Callable[..., list[str]], mount: Callable[[str], Path], capsys: pytest.CaptureFixture[str], size: str
) -> None:
    folder = mount(f"size={size}")
    message = refuses(capsys, build(*text(40_000), "--out", folder / "corpus"), code=1)
    assert "No space left on device" in message
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written(
    tmp_path: Path,
    text: Callable[..., list[str]],
    mount: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    assert "is not a folder" in refuses(capsys, build(*text(), "--out", tmp_path / "file" / "corpus"))
    if os.geteuid():
        (tmp_path / "locked").mkdir(mode=0o555)
        assert "Permission denied" in refuses(capsys, build(*text(), "--out", tmp_path / "locked" / "corpus"))
    folder = mount("ro,size=1m")
    assert "Read-only file system" in refuses(capsys, build(*text(), "--out", folder / "corpus"))


def test_wmt14_from_a_local_copy(tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "fr-en"
    copy.mkdir(parents=True)
    for split, numbers in (("train", range(500)), ("validation", range(500, 520)), ("test", range(520, 530))):
        english = [sentence(number, ENGLISH) for number in numbers]
        french = [sentence(number, FRENCH) for number in numbers]
        records = [{"en": en, "fr": fr} for en, fr in zip(english, french, strict=True)]
        pq.write_table(pa.table({"translation": records}), copy / f"{split}-00000-of-00001.parquet")
    options = ["--source", "wmt14", "--pair", "fr-en", "--hub-path", copy.parent, "--vocab-size", "330"]
    assert build(*options, "--out", tmp_path / "corpus") == 0
    manifest = Corpus.open(tmp_path / "corpus").manifest
    assert (manifest.src_lang, manifest.tgt_lang, manifest.tokenizer.kind) == ("en", "fr", "unigram")
    assert {name: info.pairs for name, info in manifest.splits.items()} == {"train": 500, "validation": 20, "test": 10}
    assert [file.name for file in manifest.source.inputs][::2] == [
        "train-00000-of-00001.parquet",
        "test-00000-of-00001.parquet",
    ]


def test_wmt14_offline_without_a_cache(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "data_prep", "build", "--source", "wmt14", "--offline"]
    command += ["--cache-dir", str(tmp_path / "cache"), "--out", str(tmp_path / "corpus")]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert finished.stderr.splitlines()[-1].startswith("dst-prep: error: cannot get wmt/wmt14 (")
    assert not (tmp_path / "corpus").exists()


def test_help_loads_no_heavy_library() -> None:
    program = "import sys, data_prep.cli as c\ntry: c.main(['build', '--help'])\nexcept SystemExit: pass\n"
    program += "print(sorted({'numpy', 'pyarrow', 'datasets', 'sentencepiece', 'rich', 'torch'} & set(sys.modules)))"
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert finished.stdout.splitlines()[-1] == "[]"


def test_the_toy_corpus(toy_corpus: Path) -> None:
    corpus = Corpus.open(toy_corpus)
    assert corpus.splits == ("train", "validation", "test")
    assert len(corpus.split("train")) == corpus.manifest.cleaning.kept > 550
    assert len(corpus.split("validation")) == len(corpus.split("test")) == 40
    assert not set(corpus.split("validation").src_texts()) & set(corpus.split("test").src_texts())


@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"no {MULTI30K}; set DST_SHARED_DATA")
def test_real_text(tmp_path: Path) -> None:
    options = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--vocab-size", "8000"]
    for flag, name in (("", "train"), ("valid-", "val"), ("test-", "test_2016")):
        options += [f"--{flag}src", str(MULTI30K / f"{name}.en.gz"), f"--{flag}tgt", str(MULTI30K / f"{name}.de.gz")]
    assert main(["build", *options, "--out", str(tmp_path / "corpus")]) == 0
    corpus = Corpus.open(tmp_path / "corpus")
    assert corpus.manifest.cleaning.read == 29_000
    assert len(corpus.split("train")) > 28_900
    test = corpus.split("test")
    assert len(test) == 1000
    _, _, flat, lengths = test.gather(np.arange(1000))
    decoded = corpus.tokenizer.decode([part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])])
    assert decoded == [" ".join(unicodedata.normalize("NFKC", line).split()) for line in test.tgt_texts()]


def test_text_writes_a_held_out_split_line_by_line(tmp_path: Path, toy_corpus: Path) -> None:
    src, tgt = tmp_path / "test.en", tmp_path / "test.de"
    assert main(["text", str(toy_corpus), "--src", str(src), "--tgt", str(tgt)]) == 0
    split = Corpus.open(toy_corpus).split("test")
    assert src.read_text().splitlines() == split.src_texts()
    assert tgt.read_text().splitlines() == split.tgt_texts()


def test_text_is_not_kept_of_the_training_split(
    tmp_path: Path, toy_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--src", str(tmp_path / "a"), "--tgt", str(tmp_path / "b")]
    assert main(["text", str(toy_corpus), "--split", "train", *files]) == 2
    assert "token ids only" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
