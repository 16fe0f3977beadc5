"""Training rows of Table 3: those that are trained already stay, and one that fails does not stop the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from support.processes.launching import run_dst
from support.training.runs import TINY

ROWS = ["base", "d_label_smoothing_0.2", "e_learned_positions"]
SHORT = [value for value in TINY if not value.startswith("tracking.")] + ["checkpoint.every_updates=2"]


def options(corpus: Path, out: Path, rows: Sequence[str] = ROWS) -> list[str]:
    given = ["table3", "--corpus", str(corpus), "--out", str(out), "--scale", "toy", "--updates", "4"]
    return [*given, "--rows", *rows, "--set", *SHORT]


def test_a_row_that_fails_does_not_stop_the_others(toy_corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "table"
    (out / "base").mkdir(parents=True)
    (out / "base" / "letter.txt").write_text("a user's file")
    (out / "table3.json").touch()
    refused = run_dst(*options(toy_corpus, out))
    assert refused.returncode == 2
    assert "table3.json is damaged" in refused.stderr
    assert "move it away and give the same command again, which keeps the trained rows" in refused.stderr
    (out / "table3.json").unlink()
    (out / "base").rename(tmp_path / "base")
    first = run_dst(*options(toy_corpus, out, ["e_learned_positions"]), "tracking.enabled=false")
    assert first.returncode == 0, first.stderr
    (out / "table3.json").unlink()
    again = run_dst(*options(toy_corpus, out, ["e_learned_positions"]), "tracking.enabled=false")
    assert again.returncode == 0, again.stderr
    # The time of saving the last checkpoint is in the first table only, as a checkpoint cannot hold it.
    untimed = [re.sub(r"\b\d+:\d\d\b", "TIME", done.stdout) for done in (first, again)]
    assert untimed[0] == untimed[1], "the row is trained already"
    (tmp_path / "base").rename(out / "base")
    done = run_dst(*options(toy_corpus, out, ["base", "e_learned_positions"]), "tracking.enabled=false")
    assert done.returncode == 1
    assert "base: failed: --run" in done.stderr
    assert "is not a run folder and not empty (letter.txt)" in done.stderr
    assert "| base | 2 |" in done.stdout
    assert (out / "base" / "letter.txt").read_text() == "a user's file"
