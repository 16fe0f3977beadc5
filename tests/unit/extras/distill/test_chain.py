"""The chain of a report, the costs of steps, and the choice of what is shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dstransformer.extras.distill import ship
from dstransformer.extras.distill.report import chains, costs

FOUND = {
    "teacher.torch": {"bleu": 40.0, "bytes": 1000, "sentences_per_second": 10.0},
    "teacher.ct2": {"bleu": 39.5, "bytes": 250, "sentences_per_second": 20.0},
    "student.torch": {"bleu": 38.0, "bytes": 200, "sentences_per_second": 50.0},
    "student.ct2": {"bleu": 37.0, "bytes": 50, "sentences_per_second": 100.0},
}
PATHS = ["PyTorch, then CTranslate2", "CTranslate2"]


def steps(found: dict[str, Any], shipped: str, path: str, *, shortlist: bool) -> list[tuple[str, str, str]]:
    every = chains(found, shipped, shortlist=shortlist)
    return [(one["from"], one["to"], one["change"]) for one in every if one["path"] == path]


def test_a_chain_has_the_factors_of_each_step_and_of_all() -> None:
    student, engine, whole = chains(FOUND, "student", shortlist=False)[:3]
    assert (student["bleu_difference"], student["bytes_factor"], student["sentences_per_second_factor"]) == (-2, 0.2, 5)
    assert (engine["bleu_difference"], engine["bytes_factor"], engine["sentences_per_second_factor"]) == (-1, 0.25, 2)
    assert (whole["bleu_difference"], whole["bytes_factor"], whole["sentences_per_second_factor"]) == (-3, 0.05, 10)
    assert whole["change"] == "all of it"


def test_a_chain_names_what_changes_and_ends_with_what_is_shipped() -> None:
    more = {"baseline.torch": FOUND["student.torch"], "finetuned.ct2": FOUND["student.ct2"]}
    found = {**FOUND, **more, "shipped.ct2": FOUND["student.ct2"]}
    assert steps(found, "finetuned", PATHS[0], shortlist=True) == [
        ("teacher.torch", "baseline.torch", "the student's architecture"),
        ("baseline.torch", "student.torch", "the teacher's translations"),
        ("student.torch", "student.ct2", "8-bit weights and the engine"),
        ("student.ct2", "finetuned.ct2", "updates with 8-bit weights"),
        ("finetuned.ct2", "shipped.ct2", "the shortlist"),
        ("teacher.torch", "shipped.ct2", "all of it"),
    ]
    # The updates did not help: the plain student is shipped.
    assert steps(found, "student", PATHS[1], shortlist=False) == [
        ("teacher.ct2", "student.ct2", "the student's architecture and the teacher's translations"),
        ("student.ct2", "finetuned.ct2", "updates with 8-bit weights"),
        ("teacher.ct2", "student.ct2", "all of it"),
    ]
    without = {name: values for name, values in FOUND.items() if not name.startswith("teacher")}
    assert steps(without, "student", PATHS[0], shortlist=False) == [
        ("student.torch", "student.ct2", "8-bit weights and the engine")
    ]
    assert steps(without, "student", PATHS[1], shortlist=False) == []


def test_costs_are_cores_times_seconds() -> None:
    found = costs([{"step": "one", "seconds": 1800.0, "cores": 4}, {"step": "two", "seconds": 3600.0}])
    assert found["steps"]["one"] == {"seconds": 1800, "cores": 4, "core_hours": 2}
    assert (found["seconds"], found["core_hours"]) == (5400, 3)


@pytest.mark.parametrize(
    ("first", "second", "best"),
    [("the cat sat here\n", "the dog sat here\n", "student"), ("a cat\n", "the cat sat here\n", "finetuned"),
     ("the cat sat here\n", "the cat sat here\n", "student")],
)  # fmt: skip
def test_the_better_export_is_shipped_and_the_first_of_equal_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, best: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("student", first), ("finetuned", second)):
        (tmp_path / "exported" / name).mkdir(parents=True)
        (tmp_path / "exported" / name / "model.bin").write_text(name)
        (tmp_path / "made").mkdir(exist_ok=True)
        (tmp_path / "made" / f"validate_{name}").write_text(text)
    (tmp_path / "reference").write_text("the cat sat here\n")
    monkeypatch.setattr("sys.argv", ["ship.py", "student", "finetuned", "--reference", "reference", "--language", "en"])
    for _ in range(2):  # the second time over the first
        assert ship.main() == 0
    assert (tmp_path / "exported" / "shipped" / "model.bin").read_text() == best
    content = json.loads((tmp_path / "shipped.json").read_text())
    assert content["model"] == best
    assert ("of equal ones the first" in content["why"]) == (first == second)
