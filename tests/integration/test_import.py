"""A model of transformers in the hands of a user: imported, used by every command, trained further, exported."""

from __future__ import annotations

from pathlib import Path

from support.models.opus import opus_folder

from dstransformer.cli.program import run as dst
from dstransformer.decoding import Translator
from dstransformer.model import open_bundle


def test_every_use_of_a_bundle_works_with_an_imported_one(tmp_path: Path) -> None:
    folder = opus_folder(tmp_path / "opus", tags=[">>deu<<", ">>nld<<"])
    bundle, text, out = tmp_path / "bundle", tmp_path / "text", tmp_path / "out"
    assert dst(["import", "hf", str(folder), "--out", str(bundle)]) == 0
    text.write_text("The quick fox jumps.\nTwo small dogs.\n")
    assert dst(["translate", str(bundle), str(text), "--beam", "1", "--to", "nld", "--output", str(out)]) == 0
    ours = out.read_text().splitlines()
    assert len(ours) == 2
    assert dst(["score", str(bundle), "--src", str(text), "--tgt", str(out), "--to", "nld"]) == 0
    assert dst(["export", "ct2", str(bundle), str(tmp_path / "ct2")]) == 0
    again = ["--engine", "ct2", "--beam", "1", "--to", "nld", "--output", str(out), "--overwrite"]
    assert dst(["translate", str(tmp_path / "ct2"), str(text), *again]) == 0
    for one, other in zip(out.read_text().splitlines(), ours, strict=True):  # the longest output is another one's
        assert one.startswith(other) or other.startswith(one)
    assert dst(["translate", str(bundle), str(text)]) == 2
    settings = open_bundle(bundle).decoding.model_copy(update={"beam_size": 1})
    assert Translator.load(bundle, settings=settings).translate([">>nld<< Two small dogs."]) == ours[1:]
