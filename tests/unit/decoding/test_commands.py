from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from support.data.corpora import TEXT

from dstransformer.decoding.commands import load_translator, translate_files
from dstransformer.decoding.formats import Request
from dstransformer.decoding.parts import translate_in_parts
from dstransformer.decoding.translator import Translator
from dstransformer.distributed.launcher import Processes
from dstransformer.errors import ConfigError, DataError, StorageError, UserError


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def test_a_file_is_translated_line_by_line(bundle: Path, tmp_path: Path) -> None:
    translator = load_translator(str(bundle))
    lines = [TEXT[0], "", TEXT[2]]
    plain = write(tmp_path / "plain", "\n".join(lines).encode())
    output = tmp_path / "out"
    assert translate_files(plain, str(output), lambda: translator).lines == 3
    assert output.read_text(encoding="utf-8").split("\n") == [*translator.translate(lines), ""]
    zipped = write(tmp_path / "lines.gz", gzip.compress("\r\n".join([*lines, ""]).encode()))
    assert translate_files(zipped, str(tmp_path / "again"), lambda: translator).lines == 3
    assert (tmp_path / "again").read_bytes() == output.read_bytes()


@pytest.mark.parametrize("file", [None, "-"])
def test_standard_input_is_translated_to_standard_output(
    bundle: Path,
    tmp_path: Path,
    file: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    translator = load_translator(str(bundle))
    write(tmp_path / "in", "Zwölf\nfox\n".encode())
    with (tmp_path / "in").open() as source:
        monkeypatch.setattr("sys.stdin", source)
        assert translate_files(file, None, lambda: translator).lines == 2
    assert capfdbinary.readouterr().out.decode().split("\n") == [*translator.translate(["Zwölf", "fox"]), ""]


@contextmanager
def conversation(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Callable[[bytes], None], BinaryIO]]:
    """A function that writes to standard input, and the stream of answers on standard output."""
    ours, theirs = os.openpty() if kind == "terminal" else reversed(os.pipe())
    answers, stdout = os.pipe()
    with os.fdopen(theirs) as stdin, os.fdopen(stdout, "w") as output, os.fdopen(answers, "rb") as reading:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stdout", output)
        yield lambda text: (os.write(ours, text), None)[1] if text else os.close(ours), reading


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_each_line_is_answered_without_waiting_for_more(
    bundle: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = load_translator(str(bundle))
    expected = [f"{text}\n".encode() for text in translator.translate(["dog", "fox"])]
    with conversation(kind, monkeypatch) as (say, answers), ThreadPoolExecutor(1) as other:
        done = other.submit(translate_files, None, None, lambda: translator)
        say(b"dog\n")
        assert answers.readline() == expected[0]
        say(b"fox\n")
        assert answers.readline() == expected[1]
        say(b"\x04" if kind == "terminal" else b"")
        assert done.result().lines == 2


def test_unusable_files_are_refused_before_the_model_is_loaded(bundle: Path, tmp_path: Path) -> None:
    def load() -> Translator:
        raise AssertionError("loaded")

    good, old = write(tmp_path / "good", b"dog\n"), write(tmp_path / "old", b"old\n")
    with pytest.raises(StorageError, match="missing is not a folder"):
        translate_files(good, str(tmp_path / "missing" / "out"), load)
    with pytest.raises(UserError, match=r"old .*--overwrite"):
        translate_files(good, old, load)
    with pytest.raises(DataError, match="cannot read"):
        translate_files(str(tmp_path / "none"), str(tmp_path / "out"), load)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "good", "old"]
    assert translate_files(good, old, lambda: load_translator(str(bundle)), overwrite=True).lines == 1
    assert (tmp_path / "old").read_text() != "old\n"


def test_prefixes_that_are_left_are_reported(bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text, prefixes = write(tmp_path / "text", b"dog\nfox\n"), write(tmp_path / "prefixes", b"the\na\n")
    request = Request(prefix_file=prefixes)
    translator = load_translator(str(bundle))
    translate_files(text, str(tmp_path / "out"), lambda: translator, request)
    assert not caplog.text
    write(tmp_path / "prefixes", b"the\na\na\n")
    translate_files(text, str(tmp_path / "again"), lambda: translator, request)
    assert "--prefix-file has more lines than the text, which has 2" in caplog.text
    assert (tmp_path / "again").read_bytes() == (tmp_path / "out").read_bytes()
    caplog.clear()
    translate_in_parts(text, str(tmp_path / "parts"), lambda: translator, request, Processes(0, 0, 1))
    assert "--prefix-file has more lines than the text, which has 2" in caplog.text


def test_a_closed_standard_input_is_reported(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(DataError, match="standard input"):
        translate_files(None, None, lambda: load_translator(str(bundle)))


def test_unusable_input_leaves_no_output(bundle: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "source", b"dog\nfo\xffx\n")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataError, match=f"{source}, line 2"):
        translate_files(source, str(tmp_path / "out"), lambda: load_translator(str(bundle)))
    assert sorted(tmp_path.iterdir()) == before


def test_options_override_the_settings_of_the_bundle(bundle: Path) -> None:
    own = load_translator(str(bundle)).settings
    translator = load_translator(str(bundle), beam_size=7, length_penalty=0.0, precision="bf16", device="cpu")
    assert translator.settings == own.model_copy(update={"beam_size": 7, "length_penalty": 0.0})
    assert translator.model.embedding.weight.dtype == torch.bfloat16


def test_unusable_options_are_named(bundle: Path) -> None:
    with pytest.raises(ConfigError, match="--beam 0"):
        load_translator(str(bundle), beam_size=0)
    with pytest.raises(ConfigError, match="--beam 5000"):
        load_translator(str(bundle), beam_size=5000)
    for penalty in (-1.0, 1e6, float("nan")):
        with pytest.raises(ConfigError, match=r"^--length-penalty "):
            load_translator(str(bundle), length_penalty=penalty)
    with pytest.raises(ConfigError, match=r"'fp8'.*fp32, bf16, fp16"):
        load_translator(str(bundle), precision="fp8")
