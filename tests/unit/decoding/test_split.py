"""``dst translate --split``: paragraphs are translated sentence by sentence, and keep their spaces and line ends."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from dstransformer.decoding import Translator
from dstransformer.decoding.commands import load_translator, translate_files
from dstransformer.decoding.formats import Request
from dstransformer.decoding.parts import translate_in_parts
from dstransformer.distributed.launcher import Processes
from dstransformer.errors import ConfigError

pytest.importorskip("sentencex", reason="needs sentencex: pip install 'dstransformer[split]'")

SENTENCES = ["The dog jumps.", "Dr. Fox jumps!", "A lazy dog?"]

#: Where the translations of the sentences come; with odd spaces, blank lines, CR LF and no end of the last line.
FRAME = "  {0}  {1}\r\n\r\n \t\n{2}\t{0} \r\n{1}"


@pytest.fixture
def expected(bundle: Path) -> str:
    return FRAME.format(*load_translator(bundle).translate(SENTENCES))


def test_a_text_keeps_its_spaces_and_line_ends(translator: Translator, expected: str) -> None:
    text = FRAME.format(*SENTENCES)
    assert translator.translate([text, "", " \n"], split=True) == [expected, "", " \n"]
    one, two = translator.search([SENTENCES[0], f"{SENTENCES[0]} {SENTENCES[0]}"], split=True)
    assert two[0].log_probability == pytest.approx(2 * one[0].log_probability)


def test_alignments_count_the_words_of_the_text(translator: Translator) -> None:
    alone = [found[0] for found in translator.search(SENTENCES[:2], alignments=True)]
    ((whole,),) = translator.search([" ".join(SENTENCES[:2])], alignments=True, split=True)
    links = [link for one in alone for link in one.alignment or ()]
    assert whole.alignment is not None
    assert len(whole.alignment) == len(links)
    assert max(src for src, _ in whole.alignment) == max(src for src, _ in alone[1].alignment or ()) + 3


def test_a_file_and_a_stream_keep_every_byte(
    bundle: Path, tmp_path: Path, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_bytes(FRAME.format(*SENTENCES).encode())
    output = tmp_path / "out"
    request = Request(split=True)
    translate_files(str(tmp_path / "in"), str(output), lambda: load_translator(bundle), request)
    assert output.read_bytes() == expected.encode()
    translate_in_parts(
        str(tmp_path / "in"), str(output), lambda: load_translator(bundle), request, Processes(0, 0, 1), overwrite=True
    )
    assert output.read_bytes() == expected.encode()
    with (tmp_path / "in").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        written = io.TextIOWrapper(io.BytesIO())
        monkeypatch.setattr("sys.stdout", written)
        translate_files(None, None, lambda: load_translator(bundle), request)
    assert written.buffer.getvalue() == expected.encode()


def test_only_the_best_is_asked_for(translator: Translator) -> None:
    with pytest.raises(ConfigError, match=r"--split .*--n-best"):
        translator.search(SENTENCES, n_best=2, split=True)
    with pytest.raises(ConfigError, match=r"--split .*--n-best"):
        Request(split=True, prefix="a")
