from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
import torch
from support.corpora import TEXT

from dstransformer.decoding.commands import load_translator, translate_files
from dstransformer.errors import ConfigError, DataError


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def test_a_file_gives_a_file_line_by_line(bundle: Path, tmp_path: Path) -> None:
    translator = load_translator(str(bundle))
    lines = [TEXT[0], "", TEXT[2]]
    plain = write(tmp_path / "plain", "\n".join(lines).encode())
    output = tmp_path / "out"
    assert translate_files(plain, str(output), translator) == 3
    assert output.read_text(encoding="utf-8").split("\n") == [*translator.translate(lines), ""]
    zipped = write(tmp_path / "lines.gz", gzip.compress("\r\n".join([*lines, ""]).encode()))
    assert translate_files(zipped, str(tmp_path / "again"), translator) == 3
    assert (tmp_path / "again").read_bytes() == output.read_bytes()


@pytest.mark.parametrize("file", [None, "-"])
def test_standard_input_gives_standard_output(
    bundle: Path, file: str | None, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    translator = load_translator(str(bundle))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO("Zwölf\nfox\n".encode()))))
    assert translate_files(file, None, translator) == 2
    assert capfdbinary.readouterr().out.decode().split("\n") == [*translator.translate(["Zwölf", "fox"]), ""]


def test_a_person_at_a_terminal_is_answered_after_each_line(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = load_translator(str(bundle))
    source = io.BytesIO(b"dog\nfox\nfox\n")
    monkeypatch.setattr("sys.stdin", Terminal(io.BufferedReader(source, buffer_size=4)))  # one line
    read_when_answered = []
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(Probe(lambda: read_when_answered.append(source.tell()))))
    translate_files(None, None, translator)
    assert read_when_answered == [4, 8, 12]


class Probe(io.BytesIO):
    """Standard output that tells when it is flushed."""

    def __init__(self, on_flush: object) -> None:
        super().__init__()
        self._on_flush = on_flush

    def flush(self) -> None:
        if not self.closed and self.getvalue():
            self._on_flush()


@pytest.mark.parametrize(("content", "complaint"), [
    (b"", "is empty"),
    (b"dog\nfo\xffx\n", "line 2, byte 3: not UTF-8"),
    (gzip.compress(b"dog\n" * 50)[:-9], "gzip data are damaged"),
    (None, "No such file"),
])  # fmt: skip
def test_unusable_input_leaves_no_output(bundle: Path, tmp_path: Path, content: bytes | None, complaint: str) -> None:
    source = tmp_path / "source"
    if content is not None:
        source.write_bytes(content)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataError, match=complaint) as caught:
        translate_files(str(source), str(tmp_path / "out"), load_translator(str(bundle)))
    assert str(source) in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_settings_replace_the_bundles_own(bundle: Path) -> None:
    own = load_translator(str(bundle)).settings
    translator = load_translator(str(bundle), beam_size=7, length_penalty=0.0, precision="bf16", device="cpu")
    assert translator.settings == own.model_copy(update={"beam_size": 7, "length_penalty": 0.0})
    assert translator.model.embedding.weight.dtype == torch.bfloat16


def test_unusable_settings_are_named(bundle: Path) -> None:
    with pytest.raises(ConfigError, match=r"decoding\.beam_size = 0"):
        load_translator(str(bundle), beam_size=0)
    with pytest.raises(ConfigError, match=r"decoding\.length_penalty = -1"):
        load_translator(str(bundle), length_penalty=-1.0)
    with pytest.raises(ConfigError, match="unknown precision 'fp8': choose one of fp32, bf16, fp16"):
        load_translator(str(bundle), precision="fp8")
    with pytest.raises(DataError, match="nowhere is not a folder"):
        load_translator("nowhere")
