"""The wheel carries both packages, the presets and the DeepSpeed fragments, and works outside the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from dstransformer.cli.launch_files import FILES

REPOSITORY = Path(__file__).resolve().parents[2]


def build(target: str, tree: Path, out: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    subprocess.run(command, check=True, cwd=tree, capture_output=True)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", REPOSITORY, tmp_path_factory.mktemp("dist"))


def test_it_holds_packages_presets_and_fragments(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "dstransformer/cli/program.py",
        "data_prep/cli/__init__.py",
        "data_prep/recipes/toy.yaml",
        "data_prep/cli/templates/report.html",
        "data_prep/grammar/sentences.py",
        "dstransformer/config/presets/base.yaml",
        "dstransformer/extras/paper/templates/attention.html",
        "dstransformer/extras/serving/templates/start.html",
        "dstransformer/config/ds_configs/zero3.json",
        "dstransformer/model/ops/kernels/kernels.cpp",
        "dstransformer/extras/distill/Snakefile",
        "dstransformer/extras/distill/profiles/slurm/config.yaml",
        *(f"dstransformer/cli/launch/{name}" for name in FILES),
    ):
        assert name in names
    assert any(name.endswith(".data/scripts/dst-exit-status") for name in names)
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


def test_links_of_its_description_lead_to_files_of_the_repository(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    links = re.findall(r"\]\(([^)\s]+)\)", metadata)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    root = r"https://(?:github\.com/dstransformer/dstransformer/blob|raw\.githubusercontent\.com/dstransformer/dstransformer)/main/"
    files = [match[1] for link in links if (match := re.match(rf"{root}([^#]+)", link))]
    assert len(files) > 50
    assert [file for file in files if not (REPOSITORY / file).is_file()] == []


def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", REPOSITORY, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.glob("dstransformer-*")
    assert not (tree / "tests").exists()
    again = zipfile.ZipFile(build("wheel", tree, tmp_path / "again"))
    first = zipfile.ZipFile(wheel)
    assert {one.filename: one.CRC for one in again.infolist()} == {one.filename: one.CRC for one in first.infolist()}


def test_it_trains_outside_the_checkout(wheel: Path, toy_corpus: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*command, str(wheel)], check=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    where = "import dstransformer, data_prep; print(dstransformer.__file__, data_prep.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], cwd=elsewhere, env=environment, capture_output=True, text=True, check=True
    )
    assert all(path.startswith(str(site)) for path in found.stdout.split())
    tiny = ["model.d_model=32", "model.num_heads=2", "training.max_updates=2", "validation.bleu_sentences=2"]
    tiny += ["decoding.beam_size=1", "decoding.max_extra_tokens=1", "tracking.enabled=false"]
    options = ["train", "toy", "--corpus", str(toy_corpus), "--run", "run", "--set", *tiny]
    done = subprocess.run(
        [sys.executable, "-m", "dstransformer", *options],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (elsewhere / "run" / "bundle" / "model.safetensors").is_file()
