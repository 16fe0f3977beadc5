"""The steps that follow from a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dstransformer.errors import ConfigError
from dstransformer.extras.distill.plan import Plan
from dstransformer.extras.distill.settings import read_settings

FILES = ("src", "tgt", "mono", "valid_src", "valid_tgt")
GUIDED = "--set=loss.guided_alignment=0.05"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).touch()
    for name in ("one", "two", "corpus"):
        (tmp_path / name).mkdir()
    return tmp_path


def plan(folder: Path, **changes: Any) -> Plan:
    content = {
        "out": "out", "src_lang": "en", "tgt_lang": "de", "teacher": {"bundles": ["one"]},
        "text": {"src": "src", "tgt": "tgt", "mono": "mono"},
        "corpus": {"valid_src": "valid_src", "valid_tgt": "valid_tgt"},
        "student": {"preset": "toy", "set": ["model.d_ff=64"]}, "test": {"t": {"src": "src", "ref": "tgt"}},
        **changes,
    }  # fmt: skip
    return Plan(read_settings(content, [folder / "mine.yaml"]))


def test_a_student_is_all_that_is_trained_unless_more_is_asked_for(folder: Path) -> None:
    found = plan(folder, alignments=None)
    assert found.train_command("student").split()[:4] == ["dst", "train", "toy", "--set=model.d_ff=64"]
    assert list(found.trained) == ["student"]
    assert list(found.systems) == ["teacher", "student", "teacher-int8", "student-int8"]
    assert list(found.speeds) == ["teacher.torch", "student.torch", "teacher.ct2", "student.ct2"]
    assert not [record for record in found.records if "align" in record or "validate" in record]
    assert found.ship_after == ["records/export_student.json"]


def test_further_trainings_differ_from_the_student_in_what_they_are_for(folder: Path) -> None:
    more = {"alignments": {"command": "x {src} {tgt} {out}"}, "finetune": {"updates": 7, "set": ["schedule.peak=1e-4"]}}
    found = plan(folder, baseline=True, **more)
    values = {name: found.train_command(name).split()[3:] for name in found.trained}
    assert values["student"][:4] == [GUIDED, "--set=model.d_ff=64", "--corpus", "corpus"]
    assert values["baseline"][:4] == [
        "--set=model.d_ff=64", "--set=loss.guided_alignment=0", "--corpus", "corpus_baseline",
    ]  # fmt: skip
    assert values["finetuned"][:9] == [
        GUIDED, "--set=model.d_ff=64", "--set=training.int8_weights=true", "--set=training.max_updates=7",
        "--set=schedule.peak=1e-4", "--corpus", "corpus", "--init", "student/bundle",
    ]  # fmt: skip
    assert "--alignments made/alignments" in found.corpus_command
    assert "--alignments" not in found.baseline_command
    assert found.ship_after == [
        f"records/{step}_{model}.json" for step in ("export", "validate") for model in found.candidates
    ]
    assert {"records/align.json", "records/baseline.json", "records/finetuned.json", "records/ship.json"} <= set(
        found.records
    )


def test_a_code_of_no_language_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="src_lang: 'jp'"):
        plan(folder, src_lang="jp")


def test_an_ensemble_is_measured_together_and_not_exported(folder: Path) -> None:
    found = plan(folder, teacher={"bundles": ["one", "two"]}, alignments={"model": "teacher"})
    both = f"{folder}/one --ensemble {folder}/two"
    assert found.systems["teacher"][1] == f"dst translate {both}"
    assert found.speeds["teacher.torch"][1] == both
    assert list(found.models) == ["student"]
    assert found.align_options.endswith(f"--bundle {folder}/one")


def test_a_teacher_that_is_trained_first_aligns_too(folder: Path) -> None:
    teacher = {"bundles": [], "preset": "mine.yaml", "corpus": "corpus"}
    found = plan(folder, teacher=teacher, alignments={"model": "teacher"})
    assert found.align_options.endswith("--bundle teacher/bundle")
    assert found.train_command("teacher").startswith(f"dst train {folder}/mine.yaml --corpus {folder}/corpus")


def test_only_students_are_limited_by_the_shortlist_of_their_corpus(folder: Path) -> None:
    found = plan(folder, export={"shortlist": True})
    assert found.export_options("teacher") == "--quantization int8"
    assert found.export_options("student") == "--quantization int8 --shortlist corpus"
    assert found.export_after("student") == ["records/student.json", "records/corpus.json"]
    assert found.systems["student-int8"][1].endswith("--engine ct2 --no-shortlist")
    assert found.systems["shipped"][1].endswith("--engine ct2")
    own = plan(folder, export={"shortlist": True, "options": ["--shortlist", "/c"]})
    assert own.export_options("student") == "--quantization int8 --shortlist /c"
