"""``dst export argos``: packages that Argos Translate installs and translates with."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from support.data.corpora import train_model
from support.models.random_bundle import random_bundle
from support.processes.environments import side_python

from dstransformer.cli import main
from dstransformer.data import Tokenizer
from dstransformer.decoding.commands import load_translator
from dstransformer.errors import DataError, UserError
from dstransformer.exchange.argos import argos_code, export_argos

#: Writes a model for MiniSBD, whose own ones are downloads: a sentence ends after a full stop.
MAKE = """
import json, sys, onnx
from onnx import TensorProto, helper
units = {"<PAD>": 0, "<UNK>": 1, ".": 2}
inputs = [helper.make_tensor_value_info("units", TensorProto.INT64, ["batch", "length"]),
    helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", "length", "count"])]
table = helper.make_tensor("table", TensorProto.FLOAT, [3, 3], [1, 0, 0, 1, 0, 0, 0, 0, 1])
output = helper.make_tensor_value_info("labels", TensorProto.FLOAT, ["batch", "length", 3])
nodes = [helper.make_node("Gather", ["table", "units"], ["labels"])]
graph = helper.make_graph(nodes, "stops", inputs, [output], [table])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
vocabulary = {"lang": "en", "_unit2id": units, "_id2unit": list(units)}
helper.set_model_props(model, {"config": json.dumps({"batch_size": 1}), "vocab": json.dumps(vocabulary)})
onnx.save(model, sys.argv[1])
"""

#: Installs a package and translates a text, as a user does; the last line is what it prints.
PROGRAM = """
import json, sys
from argostranslate import package, translate
package.install_from_path(sys.argv[1])
(installed,) = package.get_installed_packages()
translation = translate.get_translation_from_codes("en", "de")
names = [language.name for language in translate.get_installed_languages()]
print(json.dumps([str(installed), names, installed.get_readme(), translation.translate(sys.argv[2])]))
"""


def argos(home: Path, program: str, *arguments: str | Path) -> str:
    """What a program prints in Argos Translate's environment, with greedy search in fp32."""
    places = {name: str(home) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    search = {"ARGOS_BEAM_SIZE": "1", "ARGOS_COMPUTE_TYPE": "float32"}
    done = subprocess.run(
        [side_python("argos", "argostranslate", "argostranslate onnx"), "-c", program, *map(str, arguments)],
        env={**os.environ, **places, **search}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_argos_translate_installs_and_uses_it(trained: Path, learned: list[str], tmp_path: Path) -> None:
    package, home, stops = tmp_path / "en-de.argosmodel", tmp_path / "home", tmp_path / "stops.onnx"
    sources = [source for source in learned if source.count(".") == 1 and source.endswith(".")][:20]
    assert len(sources) == 20
    ours: list[str] = load_translator(trained, beam_size=1, max_extra_tokens=200).translate(sources)
    argos(home, MAKE, stops)
    export_argos(trained, package, quantization="float32", sentences=stops)
    text = "\n".join(f"{one} {other}" for one, other in zip(sources[::2], sources[1::2], strict=True))
    shown, names, readme, translated = json.loads(argos(home, PROGRAM, package, text).splitlines()[-1])
    assert translated.split("\n") == [f"{one} {other}" for one, other in zip(ours[::2], ours[1::2], strict=True)]
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


@pytest.mark.parametrize("reason", [
    "has several directions", "has a vocabulary for each language", "does not say its languages",
])  # fmt: skip
def test_what_a_package_cannot_hold_is_refused(reason: str, tmp_path: Path) -> None:
    tokenizer, provenance, changes = None, {}, {}
    if "directions" in reason:
        tokenizer = Tokenizer(train_model(user_defined_symbols=["▁>>de<<", "▁>>fr<<"]))
        tags = [{"src_lang": "en", "tgt_lang": code, "tag": f">>{code}<<"} for code in ("de", "fr")]
        provenance = {"directions": tags}
    elif "vocabulary" in reason:
        tokenizer = Tokenizer(train_model(), src=Tokenizer(train_model(vocab_size=330)))
        changes = {"tie_embeddings": "target"}
    else:
        provenance = {"src_lang": None}
    bundle = random_bundle(tmp_path / "bundle", tokenizer, provenance, **changes)
    with pytest.raises(DataError, match=f"{bundle.name} {reason}"):
        export_argos(bundle, tmp_path / "out.argosmodel")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_only_a_package_is_replaced_and_only_when_asked(tmp_path: Path) -> None:
    bundle, out = random_bundle(tmp_path / "bundle"), tmp_path / "out.argosmodel"
    with pytest.raises(DataError, match=str(bundle)):
        export_argos(bundle, out, sentences=bundle)
    export_argos(bundle, out)
    export_argos(bundle, out, overwrite=True)
    out.write_text("a thesis")
    for overwrite in (False, True):
        with pytest.raises(UserError, match=str(out)):
            export_argos(bundle, out, overwrite=overwrite)
    assert out.read_text() == "a thesis"
