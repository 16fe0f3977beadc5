from __future__ import annotations

from pathlib import Path

import pytest
from support.prep import ENGLISH, GERMAN, WriteText, sentence


@pytest.fixture
def text(tmp_path: Path) -> WriteText:
    def write(pairs: int = 600, folder: Path = tmp_path / "text") -> list[str]:
        folder.mkdir(exist_ok=True)
        options = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--vocab-size", "400"]
        for split, numbers in (("", range(pairs)), ("valid-", range(pairs, pairs + 30))):
            for side, words in (("src", ENGLISH), ("tgt", GERMAN)):
                path = folder / f"{split}{side}.txt"
                path.write_text("".join(sentence(number, words) + "\n" for number in numbers))
                options += [f"--{split}{side}", str(path)]
        return options

    return write
