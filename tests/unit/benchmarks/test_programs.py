"""``python -m benchmarks``: every program is registered, and runs with ``--smoke``."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from support.data.trees import write_treebank
from support.processes.forks import REPOSITORY, environment
from support.processes.launching import finish, forked
from support.training.runs import TINY

import benchmarks
from benchmarks.__main__ import main
from benchmarks.gpu.traces import UPDATES
from benchmarks.registry import PROGRAMS, Program

FOLDER = Path(benchmarks.__file__).parent
SHARED = Path(os.environ.get("DST_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))

#: Those that take a few seconds; the others are left to the extended tests.
FAST = {"augment", "gpu-attention", "gpu-kernels", "gpu-loss", "gpu-traces", "messages", "padding", "plan", "step"}

Inputs = Callable[[Path, pytest.FixtureRequest], list[str]]


def write_text(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def bundle_and_text(folder: Path, request: pytest.FixtureRequest) -> tuple[str, str, str]:
    """A bundle that ends its sentences, a text, and its translation."""
    src = write_text(folder / "src", ["The teacher reads an old book.", "The dog sees the cat."])
    ref = write_text(folder / "ref", ["Der Lehrer liest ein altes Buch.", "Der Hund sieht die Katze."])
    return str(request.getfixturevalue("trained")), str(src), str(ref)


def messages(folder: Path) -> list[str]:
    text = str(write_text(folder / "messages", ["%d files in {0}", "nothing"]))
    return ["--src", text, "--ref", text, text]


def traces(folder: Path) -> list[str]:
    losses = "\n".join(json.dumps({"kind": "train", "loss": 5.0 - 0.1 * update}) for update in range(UPDATES))
    for name in ("cpu-fp32", "zero1-bf16"):
        write_text(folder / f"trace-{name}.jsonl", [losses])
    return [str(folder)]


def parser(folder: Path) -> list[str]:
    trees = str(write_treebank(folder / "wsj", files=10))
    corpus, run = str(folder / "corpus"), str(folder / "run")
    build = ["build", "--source", "trees", "--trees", trees, "--splits", "files:0.1,0.1", "--vocab-size", "330"]
    train = ["train", "parser_sample", "--corpus", corpus, "--run", run, "--set", *TINY, "training.max_updates=2"]
    for program in (["data_prep", *build, "--out", corpus], ["dstransformer", *train]):
        with forked(["-m", *program]) as process:
            printed = finish(process)
            assert process.returncode == 0, printed
    return [f"{run}/bundle", trees]


def multi30k(folder: Path) -> list[str]:
    if not (SHARED / "multi30k").is_dir():
        pytest.skip(f"no {SHARED / 'multi30k'}; set DST_SHARED_DATA")
    return ["--data", str(SHARED / "multi30k"), "--folder", str(folder)]


#: What a program is given that needs something.
INPUTS: dict[str, Inputs] = {
    "augment": lambda _, request: [str(request.getfixturevalue("toy_corpus"))],
    "exports": lambda folder, request: [*bundle_and_text(folder, request)],
    "learning": lambda folder, _: multi30k(folder),
    "messages": lambda folder, _: messages(folder),
    "parsing": lambda folder, _: parser(folder),
    "serving": lambda folder, request: ["--bundle", bundle_and_text(folder, request)[0], "--text", str(folder / "src")],
    "gpu-traces": lambda folder, _: traces(folder),
}


def has_smoke(program: Program) -> bool:
    path = FOLDER.joinpath(*program.module.split(".")).with_suffix(".py")
    return hasattr(import_module(f"benchmarks.{program.module}"), "SMOKE_OPTIONS") or '"--smoke"' in path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=program.name, marks=() if program.name in FAST else pytest.mark.extended)
        for program in PROGRAMS
    ],
)
def test_it_runs(program: Program, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if not has_smoke(program):
        pytest.skip(f"needs {program.needs}")
    inputs = INPUTS.get(program.name, lambda *_: [])(tmp_path, request)
    with forked(["-m", "benchmarks", program.name, *inputs, "--smoke"], environment({"DST_CPU_KERNELS": "0"})) as run:
        printed, errors = finish(run)
        assert run.returncode == 0, printed + errors
    assert len(printed.splitlines()) > 1


def has_main(path: Path) -> bool:
    """Whether a module is a program: it has a function ``main(options)``."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return any(node.name == "main" and [arg.arg for arg in node.args.args] == ["options"] for node in functions)


def test_every_program_is_registered_and_says_what_it_needs() -> None:
    modules = {
        ".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in FOLDER.rglob("*.py") if has_main(path)
    }
    assert modules == {program.module for program in PROGRAMS}
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)
    assert all(has_smoke(program) or program.needs for program in PROGRAMS)


def test_the_list_names_every_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [program.name for program in PROGRAMS]


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["unknown"])
    assert ended.value.code == 2
    assert "unknown" in capsys.readouterr().err
