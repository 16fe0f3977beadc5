"""What an index and the host of the repository see: the description, the sdist, the workflows, the tag of a release."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from dstransformer import __version__

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(out)]
    subprocess.run(command, check=True, cwd=REPOSITORY, capture_output=True)
    return next(out.glob("*.tar.gz"))


def test_links_of_the_description_are_addresses_of_files_that_exist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        member = archive.extractfile(f"dstransformer-{__version__}/PKG-INFO")
        assert member is not None
        description = email.message_from_bytes(member.read()).get_payload()
    targets = re.findall(r"\]\(([^)\s]+)\)", str(description))
    here = [
        re.match(
            r"https://(?:github|raw\.githubusercontent)\.com/dstransformer/dstransformer/(?:blob/)?main/([^#]+)", target
        )
        for target in targets
    ]
    assert len(targets) > 40
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert [match[1] for match in here if match and not (REPOSITORY / match[1]).exists()] == []


def test_the_sdist_has_tests_but_none_of_their_stored_files(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "ds_configs/zero3.json", "launch/slurm.sbatch", "tests/unit/test_release.py"} <= names
    assert not any(name.startswith(("tests/data", "benchmarks/results", "docs/pictures")) for name in names)
    assert sdist.stat().st_size < 2e6


def test_actions_are_pinned_by_hash_with_their_version() -> None:
    used = [
        line
        for workflow in (REPOSITORY / ".github/workflows").glob("*.yaml")
        for line in re.findall(r"uses: (.*)", workflow.read_text(encoding="utf-8"))
    ]
    assert len(used) > 5
    assert [line for line in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


@pytest.mark.parametrize(("tag", "status"), [(f"v{__version__}", 0), ("v9.9.9", 1)])
def test_a_tag_is_the_version_and_the_latest_of_the_changes(tag: str, status: int) -> None:
    done = subprocess.run([REPOSITORY / ".ci/check-tag", tag], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert status == 0 or f"the tag is v9.9.9, and dstransformer.__version__ is {__version__}" in done.stderr
