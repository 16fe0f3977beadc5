"""Opens a page in Chromium and returns its HTML after its script has run."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.processes.launching import run_command

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip

#: Puts an error of the page's script into the page's title, where ``open_page`` finds it.
_WATCH = '<script>addEventListener("error", (event) => { document.title = "failed: " + event.message; });</script>'


def open_page(page: Path, folder: Path, *, address: str = "", then: str = "") -> str:
    """Open a page; return its HTML. Skips the test if there is no Chromium.

    Args:
        page: The file.
        folder: For a copy of the page and for the browser's files.
        address: The part of the address after the file name, such as ``#encoder/1/2``.
        then: JavaScript that runs after the page's own.

    Raises:
        AssertionError: The page's script failed.
    """
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium: apt-get install chromium")
    copy = folder / "copy.html"
    text = page.read_text(encoding="utf-8").replace("<head>", f"<head>{_WATCH}", 1)
    copy.write_text(text.replace("</body>", f"<script>{then}</script></body>", 1), encoding="utf-8")
    done = run_command(
        [browser, *OPTIONS, f"--user-data-dir={folder / 'browser'}", "--dump-dom", f"{copy.as_uri()}{address}"]
    )
    assert done.returncode == 0, done.stderr
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None, done.stdout[:500]
    assert not title[1].startswith("failed: "), title[1]
    return done.stdout


def elements(page: str, name: str) -> list[Mapping[str, str]]:
    """The attributes of all elements with this name, in the order of the page."""
    tags = re.findall(rf"<{name}((?:\s[^<>]*)?)>", page)
    return [{key: html.unescape(value) for key, value in re.findall(r'([\w-]+)="([^"]*)"', tag)} for tag in tags]
