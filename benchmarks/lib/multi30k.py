"""The text of Multi30k, which is not in this repository."""

from __future__ import annotations

import argparse
from pathlib import Path

#: The languages of source and target.
LANGUAGES = {"src": "en", "tgt": "de"}


def add_data_option(parser: argparse.ArgumentParser, splits: str, *, required: bool) -> None:
    """Add ``--data``; ``splits`` are those that the program reads."""
    what = f"folder with {splits}.{{en,de}}, plain or gzipped, of Multi30k"
    without = "" if required else "; without it, sentences of the toy grammar"
    parser.add_argument("--data", type=Path, required=required, help=what + without)


def find_text(data: Path, split: str, language: str) -> Path:
    """The file of a split.

    Raises:
        SystemExit: There is none.
    """
    name = f"{split}.{language}"
    for path in (data / name, data / f"{name}.gz"):
        if path.is_file():
            return path
    raise SystemExit(f"{data} has neither {name} nor {name}.gz: give --data the folder of Multi30k")
