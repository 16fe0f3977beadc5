"""Builds the site: the pages of ``docs/``, with the README as the first one, and the Python API.

python docs/site/build.py              # build/site, of which each link and anchor has been checked
python -m http.server -d build/site

The documents are written for a checkout. Their links are turned into links between pages, and those to anything else
into addresses in the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from dstransformer import __all__ as public_names

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
HERE = Path(__file__).parent
BUILD = REPOSITORY / "build"
#: Documents outside ``docs/`` that are pages.
OTHERS = {"README.md": "index.md", "CHANGELOG.md": "changes.md"}
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
API = "reference/api.md"
#: What the public names take and return, and the errors that they raise.
OTHER_NAMES = ("data.Split", "model.Bundle", "decoding.Output", "decoding.Sampling", "errors")


def pages() -> dict[Path, str]:
    """The path of each page, by its document."""
    found = {document: document.relative_to(DOCS).as_posix() for document in sorted(DOCS.glob("**/*.md"))}
    return found | {REPOSITORY / document: page for document, page in OTHERS.items()}


def with_links_of_the_site(document: Path, page: str, addresses: dict[Path, str], repository: str) -> str:
    """The text of a document, each link as the site has it."""

    def address(match: re.Match[str]) -> str:
        target = (document.parent / match[1]).resolve()
        if target in addresses or target.suffix in (".png", ".svg"):
            path = addresses.get(target) or target.relative_to(DOCS).as_posix()
            return os.path.relpath(path, Path(page).parent)
        if not target.exists():
            sys.exit(f"{document}: no file {match[1]}")
        kind = "tree" if target.is_dir() else "blob"
        return f"{repository}/{kind}/main/{target.relative_to(REPOSITORY).as_posix()}"

    parts = FENCE.split(document.read_text(encoding="utf-8"))
    parts[::2] = [LINK.sub(address, text) for text in parts[::2]]
    return "".join(parts)


def api_page() -> str:
    """The page that mkdocstrings fills with the docstrings of the public names."""
    names = [f"\n::: dstransformer.{name}\n" for name in (*public_names, *OTHER_NAMES)]
    names.append('    options:\n      filters: ["!^[a-z]", "!^[A-Z_]+$"]\n')  # of the module errors, the classes alone
    return (
        "# Python API\n\nWhat `import dstransformer` offers, and below it what these take and return. "
        f"[Python](../guide/python.md) shows it in use.\n{''.join(names)}"
    )


def main() -> int:
    """Write the documents to ``build/docs`` and build the site from them; return the status of the builder."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    staged = BUILD / "docs"
    shutil.rmtree(staged, ignore_errors=True)
    shutil.copytree(DOCS / "pictures", staged / "pictures")
    shutil.copy(HERE / "zensical.toml", BUILD)
    addresses = pages()
    for document, page in addresses.items():
        (staged / page).parent.mkdir(exist_ok=True)
        text = with_links_of_the_site(document, page, addresses, project["urls"]["Homepage"])
        (staged / page).write_text(text, encoding="utf-8")
    (staged / API).write_text(api_page(), encoding="utf-8")
    listed = {*re.findall(r'"([\w/-]+\.md)"', (HERE / "zensical.toml").read_text(encoding="utf-8"))}
    if wrong := listed ^ {*addresses.values(), API}:
        sys.exit(f"{HERE / 'zensical.toml'}: nav lacks, or has without need: {', '.join(sorted(wrong))}")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=BUILD, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
