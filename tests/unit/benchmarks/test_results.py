"""Each figure of docs/benchmarks.md names a page, and a section of it, that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, and the empty one."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {"", *(re.sub(r"[^\w\s-]", "", head.lower()).replace(" ", "-") for head in heads)}


def test_the_source_of_each_figure_exists() -> None:
    page = ROOT / "docs" / "benchmarks.md"
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if "benchmarks/results/" in line]
    links = [re.search(r"\((\.\./benchmarks/results/\w+\.md)#?([\w-]*)\) \|$", row) for row in rows if row[0] == "|"]
    assert len(links) > 30
    for link in links:
        assert link is not None
        assert link[2] in anchors(page.parent / link[1]), link[0]
