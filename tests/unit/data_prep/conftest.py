from __future__ import annotations

from pathlib import Path

import pytest
from support.data.prep import ENGLISH, GERMAN, sentence


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """The options of a build from a small text in ``tmp_path``."""
    given = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--vocab-size", "330"]
    for flag, numbers in (("", range(300)), ("valid-", range(300, 320))):
        for side, words in (("src", ENGLISH), ("tgt", GERMAN)):
            path = tmp_path / f"{flag}{side}.txt"
            path.write_text("".join(sentence(number, words) + "\n" for number in numbers))
            given += [f"--{flag}{side}", str(path)]
    return given
