"""Nothing that a target of the Makefile, a launch script or a release writes is seen by ``git status``."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

#: Files that each target of the Makefile writes into the checkout, one of each folder.
TARGETS = {
    "install": (".venv/.installed", ".venv/install.log", "dstransformer.egg-info/PKG-INFO"),
    "quickstart": ("quickstart/corpus/manifest.json", "quickstart/run/metrics.jsonl", "quickstart/mlflow.db"),
    "test": (".pytest_cache/v/cache/lastfailed", ".hypothesis/examples/0", "tests/unit/__pycache__/test_face.pyc"),
    "test-all": (".pytest_cache/v/cache/lastfailed",),
    "test-fast": (".ruff_cache/CACHEDIR.TAG", ".pytest_cache/v/cache/lastfailed"),
    "test-lowest": (".venv-lowest/bin/python", ".pytest_cache/v/cache/lastfailed"),
    "dist": ("dist/dstransformer.whl", "build/lib/dstransformer/__init__.py", ".venv-release/bin/python"),
    "coverage": (".coverage", ".coverage.host.1.0"),
    "check": (".ruff_cache/CACHEDIR.TAG", ".mypy_cache/3.11/cache.db", ".import_linter_cache/dstransformer.data.json"),
    "site": ("build/site/index.html",),
    "format": (".ruff_cache/CACHEDIR.TAG",),
    "bench": ("benchmarks/__pycache__/registry.pyc", ".bench/environment/bin/python"),
    "clean": (),
}

#: Likewise what scripts write into the folder that they are called from, by default.
SCRIPTS = {
    "launch/slurm.sbatch": ("dst-17.log", ".dst-17.failed"),
    "launch/slurm-prep.sbatch": ("dst-prep-17.log", ".dst-prep-17.abcdef/key.pem"),
    "MLproject": ("corpora/project/manifest.json", "runs/project/metrics.jsonl", "mlflow.db"),
    "benchmarks/gpu/lease.sh": ("gpu-lease/summary-1.txt",),
    "benchmarks/gpu/collect_wheels.sh": (".whl/deepspeed.whl",),
    ".ci/run": (".venv-marian/bin/python", ".venv-argos/bin/python", ".venv-comet/bin/python"),
    ".ci/wheel": ("sbom.cdx.json", "dist-sbom.json"),
}


def git(*arguments: str, stdin: str = "") -> list[str]:
    """The lines that git prints in the checkout."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout of git")


@pytest.mark.parametrize("writer", [*TARGETS, *SCRIPTS])
def test_what_it_writes_is_ignored(writer: str) -> None:
    paths = {**TARGETS, **SCRIPTS}[writer]
    assert set(git("check-ignore", "--no-index", "--stdin", stdin="\n".join(paths))) == set(paths)


def test_every_target_and_script_is_listed() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert set(TARGETS) == set(phony.split())
    assert all((ROOT / script).is_file() for script in SCRIPTS)


def test_what_is_cleaned_is_ignored() -> None:
    (cleaned,) = re.findall(r"^clean:\n\trm -rf (.*)$", MAKEFILE, re.MULTILINE)
    paths = [pattern.replace("*", "x") for pattern in cleaned.split()]
    ignored = git("check-ignore", "--no-index", "--stdin", stdin="\n".join(f"{path}/x" for path in paths))
    assert {line.removesuffix("/x") for line in ignored} == set(paths)


def test_no_product_is_tracked() -> None:
    assert git("ls-files", "--cached", "--ignored", "--exclude-standard") == []
