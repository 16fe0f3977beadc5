"""``python -m benchmarks``: every program is registered, and answers ``--help``."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import benchmarks
from benchmarks.__main__ import main
from benchmarks.registry import PROGRAMS

FOLDER = Path(benchmarks.__file__).parent
TOPICS = {"training", "decoding", "data", "serving", "resilience", "peers", "gpu"}


def has_main(path: Path) -> bool:
    """Whether a module is a program: it has a function ``main(options)``."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return any(node.name == "main" and [arg.arg for arg in node.args.args] == ["options"] for node in functions)


def test_every_program_is_registered_and_every_folder_is_a_topic() -> None:
    found = {
        ".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in FOLDER.rglob("*.py") if has_main(path)
    }
    assert found == {program.module for program in PROGRAMS}
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)
    folders = {path.parent.relative_to(FOLDER).parts[0] for path in FOLDER.rglob("*.py") if path.parent != FOLDER}
    assert folders == {*TOPICS, "lib"}
    assert {program.topic for program in PROGRAMS} == TOPICS


def test_the_list_names_every_program_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for program in PROGRAMS:
        (line,) = (line for line in lines if line.startswith(f"  {program.name} "))
        assert program.measures in line
        assert program.takes in line
        assert program.needs in line


@pytest.mark.parametrize("name", [program.name for program in PROGRAMS])
def test_every_program_answers_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m benchmarks {name} ")


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["unknown"])
    assert ended.value.code == 2
    assert "invalid choice: 'unknown'" in capsys.readouterr().err
