"""``dst-prep`` on the command line: options, streams, signals, and unusable inputs."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.corpora import Rows, train_model, write_corpus
from support.data.prep import build, refuses, without_vocab

from data_prep.cli import commands, main
from data_prep.sources import files
from data_prep.sources.texts import Pair, Text
from data_prep.workers import run_in_process
from dstransformer.data import UNK_ID, Corpus
from dstransformer.errors import DstError, UserError

ROWS: Rows = [([5, 6, 7], [8]), ([9], [10, 11]), ([12, 13], [14, 15, 16])]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus", ROWS)


def test_every_option_has_help() -> None:
    parser = commands.build_parser()
    assert parser.commands is not None
    for name, command in parser.commands.choices.items():
        assert [action.dest for action in command._actions if not action.help] == [], name


def test_the_manifest_states_the_versions_of_the_packages_that_rules_needed(tmp_path: Path, options: list[str]) -> None:
    plain, ruled = tmp_path / "plain", tmp_path / "ruled"
    assert main(["build", *options, "--workers", "1", "--out", str(plain)]) == 0
    given = ["--near-duplicates", "1", "--punctuation", "moses"]
    assert main(["build", *options, *given, "--workers", "1", "--out", str(ruled)]) == 0
    before, versions = (Corpus.open(corpus).manifest.versions for corpus in (plain, ruled))
    assert versions == {**before, "rensa": version("rensa"), "sacremoses": version("sacremoses")}


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("dst-prep 0.")


class TestStreams:
    def test_output_works_in_any_encoding(self, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        named = corpus.rename(corpus.with_name("Größe"))
        for command in (["info"], ["info", "--json"], ["verify"]):
            written = io.BytesIO()
            monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
            assert main([*command, str(named)]) == 0
            assert written.getvalue()

    def test_a_build_continues_when_its_output_is_closed(
        self, tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        broken = suppress(BrokenPipeError)  # when the files are closed at the end
        with broken, os.fdopen(os.dup(writing), "w") as output, os.fdopen(writing, "w") as errors:
            monkeypatch.setattr(sys, "stdout", output)
            monkeypatch.setattr(sys, "stderr", errors)
            assert build(*options, "--out", tmp_path / "corpus") == 0
        assert len(Corpus.open(tmp_path / "corpus").split("train")) == 300


def test_unknown_pieces_are_counted_with_a_warning(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "foreign.model", tmp_path / "corpus"
    model.write_bytes(train_model(byte_fallback=False, vocab_size=60))  # without digits and Ä
    assert build(*without_vocab(options), "--tokenizer-model", model, "--out", out) == 0
    shown = capsys.readouterr()
    corpus = Corpus.open(out)
    info = corpus.manifest.splits["train"]
    flat, _, _, _ = corpus.split("train").gather(np.arange(300))
    assert info.src_unknown == int((flat == UNK_ID).sum()) >= 300
    warnings = list(dict.fromkeys(line for line in shown.err.splitlines() if line.startswith("warning: ")))
    assert len(warnings) == 5  # two languages in two splits, and what a model cannot write
    assert re.search(
        r"cannot write 100.0% of the target sentences of validation as they are, such as '.*⁇", warnings[0]
    )
    assert f"warning: {info.src_unknown / info.src_tokens:.1%} of the en tokens in train are unknown" in warnings[1]
    assert f"unknown pieces (<unk>): train en {info.src_unknown / info.src_tokens:.2%}, train de" in shown.out
    assert main(["info", str(out)]) == 0
    assert "unknown pieces (<unk>): train en" in capsys.readouterr().out


class TestSignals:
    @pytest.mark.parametrize(("number", "what", "status"), [
        (signal.SIGINT, "interrupted", 130),
        (signal.SIGTERM, "ended by SIGTERM", 143),
        (signal.SIGHUP, "ended by SIGHUP", 129),
    ])  # fmt: skip
    def test_a_stopped_build_keeps_finished_stages(
        self,
        tmp_path: Path,
        options: list[str],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        number: signal.Signals,
        what: str,
        status: int,
    ) -> None:
        def stop(*_: object, **__: object) -> None:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # the second must be ignored

        before = signal.getsignal(number)
        with monkeypatch.context() as patch:
            patch.setattr("data_prep.stages.vocab.make_tokenizer", stop)
            assert build(*options, "--out", tmp_path / "corpus") == status
        line = capsys.readouterr().err.splitlines()[-1]
        assert line == f"dst-prep: {what}; the same command resumes from what is finished"
        assert signal.getsignal(number) == before
        assert {path.name for path in (tmp_path / "corpus.work").iterdir()} == {"read", "clean", "lock"}
        assert not list(tmp_path.glob("*.partial"))
        assert build(*options, "--out", tmp_path / "corpus") == 0
        assert "clean: finished before, reused" in capsys.readouterr().err


def kill_itself() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def fail() -> bytes:
    raise UserError("too small")


def test_run_in_process_returns_the_result_or_raises() -> None:
    assert run_in_process(b"bytes".upper) == b"BYTES"
    with pytest.raises(UserError, match="too small"):
        run_in_process(fail)
    with pytest.raises(DstError, match="SIGKILL"):
        run_in_process(kill_itself)


class TestInputs:
    @pytest.fixture(autouse=True)
    def _here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def refusal(self, capsys: pytest.CaptureFixture[str], options: list[str], **replaced: Path) -> str:
        given = list(options)
        for name, path in replaced.items():
            given[given.index(f"--{name}") + 1] = str(path)
        message = refuses(capsys, build(*given, "--out", "out"))
        assert not Path("out").exists()
        assert not Path("out.work").exists()
        return message

    def test_pipes_and_devices_are_refused(self, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
        os.mkfifo("pipe")
        for path in (Path("pipe"), Path("/dev/null"), Path("/dev/zero")):
            assert "is a pipe or a device" in self.refusal(capsys, options, src=path)
        assert "cannot read .: Is a directory" in self.refusal(capsys, options, src=Path())

    def test_a_file_that_changes_while_it_is_read_is_refused(
        self, capsys: pytest.CaptureFixture[str], options: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = files._iter_aligned

        def append(src: Text, tgt: Text) -> Iterator[Pair]:
            yield from read(src, tgt)
            for text in (src, tgt):
                with text.path.open("a") as file:
                    file.write("one more\n")

        def remove(src: Text, tgt: Text) -> Iterator[Pair]:
            yield from read(src, tgt)
            src.path.unlink()

        with monkeypatch.context() as patch:
            patch.setattr(files, "_iter_aligned", append)
            message = self.refusal(capsys, options)
            assert "src.txt changed while it was read: run the command again when it is complete" in message
            patch.setattr(files, "_iter_aligned", remove)
            assert "src.txt vanished while it was read" in self.refusal(capsys, options)

    def test_text_that_is_not_valid_unicode_is_refused(
        self, capsys: pytest.CaptureFixture[str], options: list[str]
    ) -> None:
        given = [*options[:8], "--valid-size", "2", "--train"]
        Path("half.jsonl").write_text('{"en": "\\ud800", "de": "x"}\n')
        message = refuses(capsys, build(*given, "half.jsonl", "--out", "out"))
        assert "half.jsonl, line 1: not a JSON object ('\\ud800' is a lone surrogate)" in message
        wrong = pa.Array.from_buffers(
            pa.string(), 1, [None, *pa.array([0, 1], pa.int32()).buffers()[1:], pa.py_buffer(b"\xff")]
        )
        pq.write_table(pa.table([wrong, pa.array(["x"])], names=["en", "de"]), "bytes.parquet")
        message = refuses(capsys, build(*given, "bytes.parquet", "--out", "out"))
        assert "bytes.parquet cannot be read as Parquet" in message

    def test_file_names_that_are_not_unicode_are_accepted(self, options: list[str]) -> None:
        name = os.fsdecode(b"n\xff.txt")
        Path(options[options.index("--src") + 1]).rename(name)
        options[options.index("--src") + 1] = name
        assert build(*options, "--out", "out") == 0
        assert Corpus.open("out").manifest.sources[0].inputs[0].name == r"n\udcff.txt"

    def test_names_that_are_too_long_are_refused(self, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
        for length in (241, 300):
            message = refuses(capsys, build(*options, "--out", "x" * length))
            assert "is longer than 240 bytes: choose a shorter one" in message
