"""``dst-prep build`` as a user runs it: what a corpus holds, from every source; ``dst-prep text``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
from support.data.prep import WriteText, build, contents, without_vocab
from support.processes.launching import run_command

from data_prep.cli import main
from dstransformer.data import Corpus


def test_a_build_holds_the_given_text(tmp_path: Path, text: WriteText, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_builds_and_single_stages_give_the_same_bytes(tmp_path: Path, text: WriteText) -> None:
    options = text(5000)
    assert build(*options, "--out", tmp_path / "one") == 0
    assert main(["build", "--workers", "2", *options, "--out", str(tmp_path / "elsewhere" / "two")]) == 0
    work = ["--work", str(tmp_path / "work")]
    assert main(["read", *work, *without_vocab(options)]) == 0
    assert main(["clean", *work]) == 0
    assert main(["vocab", *work, "--vocab-size", "400"]) == 0
    assert main(["encode", *work, "--out", str(tmp_path / "three")]) == 0
    one = contents(tmp_path / "one")
    assert one == contents(tmp_path / "elsewhere" / "two")
    assert one == contents(tmp_path / "three")
    assert not [name for name, content in one.items() if str(tmp_path).encode() in content]


def test_long_pairs_are_dropped_from_training_only(tmp_path: Path, text: WriteText) -> None:
    options = text()
    for side in ("src", "tgt"):
        with (tmp_path / "text" / f"{side}.txt").open("a") as file:
            file.write("x " * 200 + "\n")
        (tmp_path / "text" / f"valid-{side}.txt").write_text("x " * 200 + "\n\n")
    assert build(*options, "--max-tokens", "100", "--out", tmp_path / "corpus") == 0
    corpus = Corpus.open(tmp_path / "corpus")
    assert corpus.manifest.cleaning.dropped["too_many_tokens"] == 1
    ((src, tgt),) = corpus.manifest.cleaning.examples["too_many_tokens"]
    assert src == tgt == "x " * 149 + "x…"
    assert len(corpus.split("train")) == corpus.manifest.cleaning.kept == 600
    assert corpus.split("validation").src_lengths.tolist() == [200, 0]
    assert corpus.split("validation").src_texts() == ["x " * 200, ""]


def test_tables_and_pages_are_read_as_plain_text(
    tmp_path: Path, text: WriteText, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, folder = text(), tmp_path / "text"
    assert build(*plain, "--out", tmp_path / "plain") == 0
    capsys.readouterr()
    for split in ("", "valid-"):
        sides = [(folder / f"{split}{side}.txt").read_text().splitlines() for side in ("src", "tgt")]
        rows = (f'"{src} ""x""&#91;"\t"{tgt} &amp;"\n' for src, tgt in zip(*sides, strict=True))
        (folder / f"{split}both.tsv").write_text("".join(rows))
    options = [*plain[:8], "--train", folder / "both.tsv", "--valid", folder / "valid-both.tsv"]
    assert build(*options, "--out", tmp_path / "quoted") == 0
    said = capsys.readouterr().err
    assert "100% of the pairs of files are in quotes" in said
    assert "100% of the pairs of the validation set of files hold entities such as &#91;" in said
    assert build(*options, "--unquote", "--unescape", "html", "--out", tmp_path / "corpus") == 0
    assert "warning" not in capsys.readouterr().err
    found, wanted = (Corpus.open(tmp_path / name).split("validation") for name in ("corpus", "plain"))
    assert found.src_texts() == [f'{line} "x"[' for line in wanted.src_texts()]
    assert found.tgt_texts() == [f"{line} &" for line in wanted.tgt_texts()]


def test_what_is_wrong_with_held_out_text_is_said(
    tmp_path: Path, text: WriteText, capsys: pytest.CaptureFixture[str]
) -> None:
    options, path = text(), tmp_path / "text" / "valid-tgt.txt"
    path.write_text("".join("\n" if number % 2 else line for number, line in enumerate(path.open())))
    assert build(*options, "--out", tmp_path / "corpus") == 0
    warning = "15 of 30 references of the validation set of files are empty: scores count them as errors"
    assert warning in capsys.readouterr().err
    assert warning in Corpus.open(tmp_path / "corpus").manifest.warnings[0]


def test_text_of_the_training_split_is_unavailable(
    tmp_path: Path, toy_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--src", str(tmp_path / "a"), "--tgt", str(tmp_path / "b")]
    assert main(["text", str(toy_corpus), "--split", "train", *files]) == 2
    assert "token ids only" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_loads_no_heavy_library() -> None:
    program = "import sys, data_prep.cli as c\ntry: c.main(['build', '--help'])\nexcept SystemExit: pass\n"
    program += "print(sorted({'numpy', 'pyarrow', 'datasets', 'sentencepiece', 'rich', 'torch'} & set(sys.modules)))"
    finished = run_command([sys.executable, "-c", program])
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == "[]"
