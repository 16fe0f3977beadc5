"""How the commands look in a terminal: narrow progress, ``-q`` and ``-v``, DeepSpeed's lines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.processes.forks import environment
from support.processes.launching import finish, forked, run_dst
from support.processes.terminal import run_in_terminal, visible
from support.training.runs import train_options

#: Draws the progress of a long run, and logs a warning meanwhile.
PROGRESS = """
import logging
from dstransformer.io.command import run_guarded
from dstransformer.tracking.console import ConsoleProgress
from dstransformer.tracking.events import RunEnd, TrainingProgress
from support.services.mlflow_server import make_start

def run():
    progress = ConsoleProgress(100_000)
    progress.emit(make_start())
    metrics = {"loss": 3.25, "lr": 0.001, "tokens_per_second": 123456.0, "epoch": 4.0, "memory_gib": 41.25, "mfu": 0.38}
    progress.emit(TrainingProgress(54_321, metrics))
    if progress._live is not None:
        progress._live.refresh()
    logging.getLogger("dstransformer").warning("a warning")
    progress.emit(RunEnd("finished"))
    return 0

run_guarded("dst", run)
"""


@pytest.mark.parametrize(("columns", "expected"), [
    (40, "update 54321/100000  loss 3.2500"),
    (60, r"update 54321/100000  loss 3.2500  ETA \S+"),
    (80, r"update 54321/100000  loss 3.2500  123,456 tokens/s in updates  ETA \S+"),
    (150, r"update 54321/100000  ━{6}\S━{5}  epoch 4  loss 3.2500  lr 1.00e-03  123,456 .*  ETA \S+"),
])  # fmt: skip
def test_progress_fits_the_terminal(columns: int, expected: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRESS)
    lines = visible(run_in_terminal(str(program), columns=columns))
    assert any(re.fullmatch(expected, line) for line in lines), lines
    assert max(map(len, lines)) <= columns
    assert "dst: a warning" in lines


def test_no_line_is_redrawn_where_that_cannot_be_seen(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRESS)
    with forked([str(program)], environment({"FORCE_COLOR": "1"})) as process:
        _, piped = finish(process)
    for written in (piped, run_in_terminal(str(program), extra={"TERM": "dumb"})):
        assert written.startswith("update 54321/100000 (54.3%)  epoch 4  loss 3.2500  lr 1.00e-03  123,456 tokens/s")
        assert "\x1b" not in written


def test_no_number_of_a_build_is_cut_in_a_narrow_terminal(tmp_path: Path) -> None:
    sizes = ["--pairs", "3000", "--valid-size", "5", "--test-size", "5"]
    build = ["build", "--source", "toy", *sizes, "--out", str(tmp_path / "corpus")]
    lines = visible(run_in_terminal("-m", "data_prep", *build, columns=60))
    done = r"train a bpe vocabulary of 1,000 .* 6000/6000 0:\S+"
    assert any(re.fullmatch(done, line) for line in lines), lines
    assert [line for line in lines if "…" in line] == []


def test_quiet_commands_print_results_warnings_and_errors_only(tmp_path: Path) -> None:
    converted = tmp_path / "deepspeed.json"
    converted.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 1}, "gradient_clipping": 1.0}')
    for words, notes in (([], True), (["-q"], False)):
        done = run_dst(*words, "ds-config", "--from", str(converted))
        assert ("note: " in done.stderr) is notes
        assert "use with: --set" in done.stderr
        assert '"stage": 1' in done.stdout
    corpus = tmp_path / "corpus"
    sizes = ["--pairs", "500", "--valid-size", "5", "--test-size", "5"]
    with forked(["-m", "data_prep", "--quiet", "build", "--source", "toy", *sizes, "--out", str(corpus)]) as process:
        output, errors = finish(process)
    assert errors == ""
    assert "dropped: duplicate" in output


@pytest.mark.parametrize("option", ["-q", "-v"])
def test_deepspeed_logs_into_the_run_and_after_v_to_the_terminal(option: str, toy_corpus: Path, tmp_path: Path) -> None:
    arguments = train_options(toy_corpus, tmp_path / "run", "training.max_updates=2", "tracking.enabled=false")
    done = run_dst(*arguments, option, "--json", "--ds", "zero1", "fp32", "offload_optimizer")
    log = (tmp_path / "run" / "logs" / "rank-00000.log").read_text()
    for line in ("[Rank 0] DeepSpeed info: version=", "Adam Optimizer #0 is created"):  # the second is printed by C++
        assert line in log
        assert (line in done.stderr) is (option == "-v")
    assert ("training finished" in done.stderr) is (option == "-v")
    assert json.loads(done.stdout)["step"] == 2
