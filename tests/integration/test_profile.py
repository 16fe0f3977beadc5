"""``dst train --profile``: a trace of the updates, a table of operators, and the same training."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from support.processes.launching import run_dst
from support.training.runs import losses, plain_options


@pytest.mark.slow
def test_a_profile_holds_the_updates_and_changes_nothing(toy_corpus: Path, plain_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = run_dst(*plain_options(toy_corpus, run), "tracking.enabled=false", "--profile", "2")
    assert done.returncode == 0, done.stderr
    trace = json.loads(gzip.decompress((run / "profile" / "trace.json.gz").read_bytes()))
    names = {event.get("name", "") for event in trace["traceEvents"]}
    assert {name for name in names if name.startswith("ProfilerStep")} == {"ProfilerStep#3", "ProfilerStep#4"}
    table = (run / "profile" / "operators.txt").read_text()
    assert "Self CPU" in table
    assert table.splitlines()[0] in done.stderr
    assert losses(run) == losses(plain_run)
