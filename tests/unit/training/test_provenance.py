"""The commit that a run records."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dstransformer.training import provenance


def git(folder: Path, *arguments: str) -> str:
    name = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *name, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_commit_is_read_without_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "module.py"
    monkeypatch.setattr(provenance, "__file__", str(module))
    module.write_text("x = 1\n")
    assert provenance.git_revision() is None
    git(tmp_path, "init", "-q")
    assert provenance.git_revision() is None, "it is not one of the repository's files"
    git(tmp_path, "add", "module.py")
    git(tmp_path, "commit", "-qm", "One")
    commit, index = git(tmp_path, "rev-parse", "HEAD"), tmp_path / ".git" / "index"
    os.utime(module, (1, 1))  # git would refresh its index
    before = index.stat().st_mtime_ns
    assert provenance.git_revision() == commit
    module.write_text("x = 2\n")
    assert provenance.git_revision() == f"{commit}-dirty"
    assert index.stat().st_mtime_ns == before
