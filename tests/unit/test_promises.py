"""Every file of tests that the table of promises names has a test that ``make test`` runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.processes.forks import REPOSITORY

#: Pages that may hold the table, and the line before it.
PAGES = [REPOSITORY / "docs" / "reference" / "guarantees.md", REPOSITORY / "README.md"]


def named_files() -> list[Path]:
    """The files of tests to which the table's rows link."""
    found: list[Path] = []
    for page in filter(Path.is_file, PAGES):
        rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
        links = [link for row in rows for link in re.findall(r"\]\(([^)#]*test_[a-z0-9_]+\.py)", row)]
        found += [(page.parent / link).resolve() for link in links]
    return sorted(set(found))


def test_the_table_names_files_that_exist() -> None:
    files = named_files()
    assert len(files) > 50
    assert [path for path in files if not path.is_file()] == []


def test_make_test_runs_a_test_of_every_promise(first_tier: dict[Path, bool]) -> None:
    """A run of a part of the tests checks what it has collected; ``make test`` collects all."""
    collected = [path for path in named_files() if path in first_tier]
    if not collected:
        pytest.skip("no file of the table was collected")
    assert [path for path in collected if not first_tier[path]] == []
