"""``dst export argos``: packages that Argos Translate installs and translates with."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.data.corpora import train_model
from support.models.random_bundle import random_bundle
from support.processes.environments import side_python

from dstransformer.cli import main
from dstransformer.data import Tokenizer
from dstransformer.decoding.commands import load_translator
from dstransformer.exchange.argos import argos_code, export_argos

#: Installs a package and translates a text of three lines, as a user does; the last line is what it prints. MiniSBD's
#: model, which finds sentences, is a download: each line is a sentence here.
PROGRAM = """
import json, sys
from argostranslate import package, translate

class Lines:
    def split_sentences(self, text):
        return [text]

package.install_from_path(sys.argv[1])
(installed,) = package.get_installed_packages()
translation = translate.get_translation_from_codes("en", "de")
translation.underlying.sentencizer = Lines()
names = [language.name for language in translate.get_installed_languages()]
print(json.dumps([str(installed), names, installed.get_readme(), translation.translate(sys.argv[2])]))
"""


def argos(package: Path, text: str, home: Path) -> Any:
    """What the program prints, with greedy search in fp32."""
    places = {name: str(home) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    search = {"ARGOS_BEAM_SIZE": "1", "ARGOS_COMPUTE_TYPE": "float32"}
    done = subprocess.run(
        [side_python("argos", "argostranslate"), "-c", PROGRAM, str(package), text],
        env={**os.environ, **places, **search}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_argos_translate_installs_and_uses_it(trained: Path, learned: list[str], tmp_path: Path) -> None:
    package = tmp_path / "en-de.argosmodel"
    ours: list[str] = load_translator(trained, beam_size=1, max_extra_tokens=200).translate(learned[:20])
    export_argos(trained, package, quantization="float32")
    shown, names, readme, translated = argos(package, "\n".join(learned[:20]), tmp_path / "home")
    assert translated.split("\n") == ours
    assert shown == " → ".join(names)
    assert readme.startswith(f"# {names[0]} to {names[1]}\n")


def test_a_package_is_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, out = random_bundle(tmp_path / "bundle"), tmp_path / "new.argosmodel"
    assert main(["export", "argos", str(bundle), str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: a package for Argos Translate and LibreTranslate (int8)\n"
    with zipfile.ZipFile(out) as archive:
        names = {name.removeprefix("translate-en_de/") for name in archive.namelist()}
        metadata = json.loads(archive.read("translate-en_de/metadata.json"))
        assert archive.read("translate-en_de/sentencepiece.model") == (bundle / "tokenizer.model").read_bytes()
    assert {"metadata.json", "sentencepiece.model", "README.md", "model/model.bin", "model/config.json"} <= names
    assert (metadata["from_code"], metadata["to_code"], metadata["type"]) == ("en", "de", "translate")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "new.argosmodel"]


@pytest.mark.parametrize(("code", "expected"), [
    ("deu", "de"), ("zho_Hans", "zh"), ("zh-TW", "zt"), ("zh_Hant", "zt"), ("pt-BR", "pb"), ("por", "pt"),
    ("nob", "nb"), ("tl", "tl"), ("no", "nb"), ("gsw", "gsw"),
])  # fmt: skip
def test_codes_are_those_of_argos_translate(code: str, expected: str) -> None:
    assert argos_code(code) == expected


def test_what_a_package_cannot_hold_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directions = [{"src_lang": "en", "tgt_lang": code, "tag": f">>{code}<<"} for code in ("de", "fr")]
    symbols = Tokenizer(train_model(user_defined_symbols=["▁>>de<<", "▁>>fr<<"]))
    separate = Tokenizer(train_model(), src=Tokenizer(train_model(vocab_size=330)))
    bundles = {
        "has several directions": random_bundle(tmp_path / "1", symbols, {"directions": directions}),
        "has a vocabulary for each language": random_bundle(tmp_path / "2", separate, tie_embeddings="target"),
        "does not say its languages": random_bundle(tmp_path / "3", provenance={"src_lang": None}),
    }
    out = tmp_path / "out.argosmodel"
    for message, bundle in bundles.items():
        assert main(["export", "argos", str(bundle), str(out)]) == 2
        error = capsys.readouterr().err
        assert f"{bundle} {message}" in error
        assert error.count("\n") == 1
    bundle = random_bundle(tmp_path / "fits")
    for text, options, message in (
        ("a thesis", (), "already exists: replace it with --overwrite"),
        ("a thesis", ("--overwrite",), "is not a package of Argos Translate"),
    ):
        out.write_text(text)
        assert main(["export", "argos", str(bundle), str(out), *options]) == 2
        assert message in capsys.readouterr().err
        assert out.read_text() == text
    out.unlink()
    export_argos(bundle, out)
    export_argos(bundle, out, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3", "fits", "out.argosmodel"]
