"""The sample of the Penn Treebank, where there is one."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from dstransformer.extras.parsing.trees import Tree, normalise, read_trees

SAMPLE = Path(os.environ.get("DST_SHARED_DATA", Path(__file__).parents[5] / "shared" / "data")) / "treebank"


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> list[Tree]:
    archive = SAMPLE / "wsj_sample.tar.gz"
    if not archive.is_file():
        pytest.skip(f"no {archive}; set DST_SHARED_DATA")
    folder = tmp_path_factory.mktemp("treebank")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    found = [normalise(located.tree) for located in read_trees(str(folder))]
    assert len(found) > 3000
    return [tree for tree in found if tree is not None]
