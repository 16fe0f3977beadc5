"""``benchmarks/gpu/lease.sh``: every command that it would run on a GPU parses, and runs in a rehearsal without one."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest
from support.processes.launching import run_command

from benchmarks.__main__ import main
from benchmarks.gpu.traces import UPDATES
from benchmarks.registry import PROGRAMS
from data_prep.cli import commands as prep
from dstransformer.cli.program import build_parser
from dstransformer.config import compose, load_config

SCRIPT = Path(__file__).parents[3] / "benchmarks/gpu/lease.sh"


def run(*arguments: str, **variables: str) -> tuple[int, str, str]:
    done = run_command([str(SCRIPT), *arguments], env=os.environ | {"PYTHON": sys.executable} | variables)
    return done.returncode, done.stdout, done.stderr


def parts(script: str) -> dict[str, tuple[int, list[str]]]:
    """The parts of a script that start Python: seconds at most, and the words after the interpreter."""
    status, printed, _ = run("--list", script)
    assert status == 0
    found = {}
    for line in printed.splitlines():
        name, limit, command = line.split("\t")
        interpreter, *words = shlex.split(command)
        if interpreter != "bash":
            assert interpreter == sys.executable
            found[name] = (int(limit), words)
    return found


def parse(words: list[str]) -> argparse.Namespace:
    """Parse a command as its program does."""
    flag, module, *rest = words
    assert flag == "-m"
    if module == "benchmarks":
        (program,) = (one for one in PROGRAMS if one.name == rest[0])
        parser = argparse.ArgumentParser()
        import_module(f"benchmarks.{program.module}").add_options(parser)
        return parser.parse_args(rest[1:])
    if module == "dstransformer":
        return build_parser().parse_args(rest)
    assert module == "data_prep"
    return prep.build_parser().parse_args(rest)


@pytest.mark.parametrize(("script", "deadline"), [("1", 345), ("2", 320)])
def test_every_command_parses_and_no_part_is_longer_than_its_script(script: str, deadline: int) -> None:
    for limit, words in parts(script).values():
        assert limit < deadline
        if "pytest" in words:
            assert (SCRIPT.parents[2] / words[2]).is_dir()
            continue
        options = parse(words)
        if words[2] == "train":
            compose(load_config(options.preset, options.overrides, options.ds), 1)


@pytest.mark.parametrize("script", ["1", "2"])
def test_after_the_deadline_nothing_starts_and_the_summary_says_so(script: str, tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    status, printed, _ = run(script, LEASE_SMOKE="1", LEASE_SECONDS="0", OUT=str(out), LEASE_WORK=str(work))
    assert status == 1
    summary = (out / f"summary-{script}.txt").read_text()
    assert printed.endswith(summary)
    lines = [line.split() for line in summary.splitlines()[2:]]
    assert {line[0] for line in lines} >= set(parts(script))
    assert {line[1] for line in lines} == {"skipped"}
    assert (out / f"results-{script}.tar.gz").exists()


@pytest.mark.slow
def test_what_hangs_is_ended_before_the_deadline(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    variables = {"PYTHON": str(python), "OUT": str(tmp_path / "out"), "LEASE_WORK": str(tmp_path / "work")}
    assert run("2", LEASE_SECONDS="9", **variables)[0] == 1
    lines = (tmp_path / "out" / "summary-2.txt").read_text().splitlines()[2:]
    first, *others = (line.split()[1] for line in lines)
    assert first == "124"
    assert set(others) == {"skipped"}


@pytest.mark.extended
@pytest.mark.parametrize("script", ["1", "2"])
def test_a_rehearsal_without_a_gpu_runs_every_part(script: str, tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    (work / "site").mkdir(parents=True)
    (work / "site" / ".complete").touch()  # wheels that lie in the checkout are for another Python
    variables = {"LEASE_SMOKE": "1", "OUT": str(out), "LEASE_WORK": str(work), "WORKERS": "2"}
    status, printed, _ = run(script, **variables)
    ends = {line.split()[0]: line.split()[1] for line in (out / f"summary-{script}.txt").read_text().splitlines()[2:]}
    assert status == 0, printed
    assert set(ends.values()) == {"0"}
    assert len(list(out.iterdir())) <= 8


def test_a_trace_that_strays_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def write(name: str, losses: list[float]) -> None:
        lines = [json.dumps({"kind": "train", "loss": loss}) for loss in losses]
        (tmp_path / f"trace-{name}.jsonl").write_text("\n".join(lines))

    reference = [5.0 - 0.1 * update for update in range(UPDATES)]
    write("cpu-fp32", reference)
    write("zero1-bf16", [1.001 * loss for loss in reference])
    write("whole-bf16", [1.001 * loss for loss in reference])
    (tmp_path / "toy-bf16.jsonl").write_text('{"kind": "final_test", "bleu": 95.0}')
    assert main(["gpu-traces", str(tmp_path)]) == 0
    assert "stopped and resumed beside whole, bf16: equal" in capsys.readouterr().out
    write("zero3-bf16", [1.01 * loss for loss in reference])
    write("zero2-fp16", reference[:20])
    assert main(["gpu-traces", str(tmp_path)]) == 1
    strays = re.findall(r"\| (\S+) .* STRAYS \|", capsys.readouterr().out)
    assert strays == ["zero2-fp16", "zero3-bf16"]
