"""``benchmarks/gpu/lease.sh``: every command that it would run on a GPU parses, and without one it says so."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from support.processes.launching import run_command

from benchmarks.registry import PROGRAMS
from data_prep.cli import commands as prep
from dstransformer.cli.options import split_values
from dstransformer.cli.program import build_parser
from dstransformer.config import compose, load_config

SCRIPT = Path(__file__).parents[4] / "benchmarks/gpu/lease.sh"

#: Seconds that each script may take; the first runs three trainings side by side.
LIMIT = 540


def run(*arguments: str) -> tuple[int, str, str]:
    variables = os.environ | {"PYTHON": sys.executable, "OUT": "out", "MULTI30K": "corpus", "MULTI30K_TEST": "test"}
    done = run_command([str(SCRIPT), *arguments], env=variables)
    return done.returncode, done.stdout, done.stderr


def parts(script: str) -> dict[str, tuple[int, list[str]]]:
    """The parts of a script: seconds at most, and the words after the interpreter."""
    status, printed, _ = run("--list", script)
    assert status == 0
    found = {}
    for line in printed.splitlines():
        name, limit, command = line.split("\t")
        interpreter, *words = shlex.split(command.replace("gpu and not slow", "'gpu and not slow'"))
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
        return build_parser().parse_args(split_values(rest))
    assert module == "data_prep"
    return prep.build_parser().parse_args(rest)


@pytest.mark.parametrize("script", ["1", "2", "3"])
def test_every_command_parses_and_the_parts_fit_in_nine_minutes(script: str) -> None:
    found = parts(script)
    for _, words in found.values():
        if "pytest" in words:
            assert (SCRIPT.parents[2] / words[2]).is_dir()
            continue
        options = parse(words)
        if words[2] == "train":
            config = load_config(options.preset, options.overrides, options.ds)
            compose(config, 1)
    beside = sum(limit for name, (limit, _) in found.items() if name.startswith("zero"))
    assert sum(limit for limit, _ in found.values()) - beside + beside / 3 <= LIMIT


def test_every_stage_and_precision_is_stopped_and_resumed() -> None:
    layouts = {f"zero{stage}-{precision}" for stage in range(4) for precision in ("bf16", "fp16", "fp32")}
    assert {name for name in parts("1") if name.startswith("zero")} == {
        f"{layout}-{start}" for layout in layouts for start in ("start", "resume")
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_says_so_in_a_line() -> None:
    status, printed, said = run("1")
    assert (status, printed) == (2, "")
    assert said.count("\n") == 1
    assert "needs a CUDA device" in said


def test_an_unknown_script_is_refused() -> None:
    assert run("4")[0] == 2


@pytest.mark.parametrize("command", [
    ["gpu-ceilings", "--size", "64"], ["gpu-kernels", "--tokens", "64", "--pieces", "50"],
    ["gpu-graph", "--smoke"], ["gpu-waits", "--smoke"],
], ids=lambda command: command[0])  # fmt: skip
def test_its_programs_run_without_a_gpu(command: list[str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    variables = os.environ | {"CUDA_VISIBLE_DEVICES": "", "DST_CPU_KERNELS": "0", "OMP_NUM_THREADS": "1"}
    done = run_command([sys.executable, "-m", "benchmarks", *command, "--json", str(report)], env=variables)
    assert done.returncode == 0, done.stderr
    assert report.exists()
