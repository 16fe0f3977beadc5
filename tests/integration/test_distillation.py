"""The distillation workflow: its plan, what it refuses, and what a kill at any moment leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient
from support.processes.forks import REPOSITORY, environment
from support.processes.launching import run_command, run_dst, started, wait_until
from support.training.runs import TINY

from data_prep.cli import main as dst_prep
from dstransformer.errors import DstError
from dstransformer.extras.distill.plan import Plan, check
from dstransformer.extras.distill.settings import read_settings

snakemake = pytest.importorskip("snakemake", reason="needs snakemake: pip install -c constraints.txt -e '.[distill]'")

TEXT = {"src": "parallel.en", "tgt": "parallel.de", "mono": "mono.en"}
HERE = REPOSITORY / "dstransformer" / "extras" / "distill"
CODE = environment() | {"MLFLOW_DISABLE_TELEMETRY": "true"}

#: Just enough that the teacher writes words.
LEARNING = [
    *(value for value in TINY if not value.startswith(("model.", "training.", "validation.every"))),
    "model.num_layers=1", "model.d_model=64", "model.d_ff=128", "model.num_heads=2", "model.d_k=32", "model.d_v=32",
    "batch.src_tokens=1200", "batch.tgt_tokens=1200", "batch.micro_batches=1", "training.max_updates=200",
    "validation.every=0",
]  # fmt: skip
#: Aligns the words of both sides in their order.
ALIGNER = (
    'paste {src} {tgt} | awk -F\'\\t\' \'{ n = split($1, a, " "); m = split($2, b, " "); line = "";'
    ' for (i = 0; i < n && i < m; i++) line = line i "-" i " "; print line }\' > {out}'
)

STUDENT = [value for value in TINY if not value.startswith("tracking.")]
STUDENT += ["model.encoder_layers=2", "model.decoder_layers=1", "training.max_updates=30", "checkpoint.every_updates=3"]


@pytest.fixture(scope="module")
def models(shared_folder: Callable[[str, Callable[[Path], object]], Path], extended: bool) -> Path:
    """Text of the embedded grammar, a teacher, which writes words if tests need them, and a reverse model."""
    updates = [] if extended else ["training.max_updates=2"]

    def make(folder: Path) -> None:
        sizes = ["--pairs", "1500", "--vocab-size", "400", "--valid-size", "40", "--test-size", "120"]
        corpus = str(folder / "corpus")
        assert dst_prep(["build", "--source", "toy", *sizes, "--out", corpus]) == 0
        for split in ("validation", "test"):
            files = ["--src", str(folder / f"{split}.en"), "--tgt", str(folder / f"{split}.de")]
            assert dst_prep(["text", corpus, "--split", split, *files]) == 0
        for side in ("en", "de"):
            lines = (folder / f"test.{side}").read_text(encoding="utf-8").splitlines(keepends=True)
            thirds = len(lines) // 3
            for number, name in enumerate(("parallel", "mono", "short")):
                (folder / f"{name}.{side}").write_text("".join(lines[number * thirds : (number + 1) * thirds]))
        texts = [str(folder / f"{name}.{side}") for name in ("parallel", "validation") for side in ("de", "en")]
        words = ["--src", texts[0], "--tgt", texts[1], "--valid-src", texts[2], "--valid-tgt", texts[3]]
        back = ["--source", "files", "--src-lang", "de", "--tgt-lang", "en", *words, "--vocab-size", "330"]
        assert dst_prep(["build", *back, "--out", str(folder / "back")]) == 0
        for name, corpus, more in (("teacher", "corpus", updates), ("reverse", "back", ["training.max_updates=2"])):
            run = ["train", "toy", "--corpus", str(folder / corpus), "--run", str(folder / name), "--set", *LEARNING]
            done = run_dst(*run, *more)
            assert done.returncode == 0, done.stderr

    return shared_folder(f"distillation-{extended}", make)


def configure(models: Path, folder: Path, **changes: Any) -> Path:
    """A configuration in a folder, and the folder ``out`` beside it."""
    folder.mkdir(exist_ok=True)
    content = {
        "out": "out",
        "src_lang": "en",
        "tgt_lang": "de",
        "teacher": {"bundles": [str(models / "teacher")]},
        "text": {name: str(models / file) for name, file in TEXT.items()},
        "translate": {"beam": 3, "n_best": 3, "options": ["--min-tokens", "4"]},
        "filter": {"reverse": str(models / "reverse"), "drop": 0.1},
        "corpus": {"valid_src": str(models / "validation.en"), "valid_tgt": str(models / "validation.de")},
        "student": {"preset": "toy", "set": STUDENT},
        "test": {"toy": {"src": str(models / "short.en"), "ref": str(models / "short.de")}},
        **changes,
    }
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def command(config: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "dstransformer", "distill", str(config), *options]


def run(config: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_command(command(config, *options), env=CODE, cwd=config.parent)


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of the workflow's own errors."""
    return [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("distill: ")]


def products(out: Path) -> dict[str, bytes]:
    """What does not depend on time: texts, scores, corpus, weights, export."""
    found = [path for name in ("made", "corpus", "exported") for path in (out / name).rglob("*") if path.is_file()]
    found = [path for path in found if not path.name.startswith((".", "speed.")) and path.name != "dst.json"]
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in [*found, out / "scores.json", out / "student" / "bundle" / "model.safetensors"]
    }


def test_a_dry_run_prints_the_plan_and_makes_nothing(models: Path, tmp_path: Path) -> None:
    done = run(configure(models, tmp_path), "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    for rule in ("translate_n_best", "choose", "score", "filter", "corpus", "student", "export", "scores", "report"):
        assert f"rule {rule}:" in done.stdout + done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")] == []


def test_back_translation_is_the_same_workflow(models: Path, tmp_path: Path) -> None:
    teacher, reverse = {"bundles": [str(models / "reverse")]}, {"reverse": str(models / "teacher")}
    text = {"src": str(models / "parallel.en"), "tgt": str(models / "parallel.de"), "mono": str(models / "mono.de")}
    config = configure(models, tmp_path, teacher=teacher, filter=reverse, text=text, back_translation={"enabled": True})
    done = run(config, "--dry-run", "--printshellcmds")
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout + done.stderr
    assert "--sample --seed 1" in printed
    assert "'s|^|<BT> |' made/mono.kept.translation" in printed
    assert f"--src {text['src']} made/tagged --tgt {text['tgt']} made/mono.kept" in printed
    assert "rule choose:" not in printed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"filter": {"reverse": "TEACHER"}}, "teacher translates from en to de: name one from de to en"),
        ({"teacher": {"bundles": ["REVERSE"]}}, "reverse translates from de to en: name one from en to de"),
        ({"teacher": {"bundles": ["TEACHER", "OTHER"]}}, "has another vocabulary than"),
        ({"teacher": {"bundles": []}}, "teacher: name bundles, or preset and corpus of a teacher to train"),
        ({"text": {"src": "none.en"}}, "none.en is not a file"),
        ({"translate": {"n_best": 9}}, "translate: n_best is 9, more than the beam of 8"),
        ({"filter": {"drop": 1}}, "filter.drop is 1: Input should be less than 1"),
        ({"student": {"preset": None}}, "student.preset is missing: give it in your configuration"),
        ({"export": {"quantisation": "int8"}}, "export.quantisation is not a value of a configuration"),
        ({"test": {}}, "test is {}"),
        ({"alignments": {"model": "TEACHER", "command": ALIGNER}}, "alignments: model and command are both given"),
        ({"alignments": {"command": "my-aligner {src} {tgt}"}}, "alignments: command lacks {out}: it must name"),
        ({"alignments": {"model": "none"}}, "none is not a folder"),
        ({"alignments": {"model": "REVERSE"}}, "reverse translates from de to en: name one from en to de"),
        ({"alignments": {"model": "teacher"}}, "teacher was not trained with guided alignment: train it with"),
        ({"student": {"set": ["loss.guided_alignment=1"]}}, "loss.guided_alignment is 1.0, but nothing aligns"),
        ({"student": {"set": ["model.d_modell=8"]}}, "training of student: "),
        ({"finetune": {"updates": -1}}, "finetune.updates is -1"),
        (
            {"text": {"src": None, "tgt": None, "mono": "MONO"}, "baseline": True},
            "baseline trains on text.src and text.tgt",
        ),
    ],
)
def test_bad_values_are_refused_in_one_line(
    models: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    other = tmp_path / "other"
    if "OTHER" in str(changes):
        shutil.copytree(models / "teacher" / "bundle", other)
        replace_vocabulary(other, models / "reverse" / "bundle")
    text = json.dumps(changes).replace("TEACHER", str(models / "teacher")).replace("REVERSE", str(models / "reverse"))
    changed = json.loads(text.replace("OTHER", str(other)).replace("MONO", str(models / "mono.en")))
    config = configure(models, tmp_path / "config", **changed)
    with pytest.raises(DstError) as caught:
        check(Plan(read_settings(yaml.safe_load(config.read_text()), [config])))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def replace_vocabulary(bundle: Path, other: Path) -> None:
    """Give a bundle the tokenizer of another one."""
    shutil.copy(other / "tokenizer.model", bundle / "tokenizer.model")
    provenance = json.loads((bundle / "provenance.json").read_text())
    theirs = json.loads((other / "provenance.json").read_text())
    provenance["files"]["tokenizer.model"] = theirs["files"]["tokenizer.model"]
    (bundle / "provenance.json").write_text(json.dumps(provenance))


def test_a_workflow_refuses_bad_values_before_its_first_step(models: Path, tmp_path: Path) -> None:
    done = run(configure(models, tmp_path, filter={"reverse": str(models / "teacher")}))
    assert done.returncode == 1
    assert [line.partition(": /")[0] for line in said(done)] == ["distill: error: filter.reverse"]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "records").exists()


def step(folder: Path, record: str, makes: str, *words: str, after: str = "") -> subprocess.CompletedProcess[str]:
    options = ["--record", f"records/{record}.json", "--log", f"logs/{record}.log", "--makes", makes]
    options += ["--after", f"records/{after}.json"] if after else []
    return subprocess.run(
        [sys.executable, str(HERE / "step.py"), *options, "--", *words],
        cwd=folder, env=CODE, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_step_refuses_what_was_damaged_and_names_the_step_to_repeat(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    assert step(tmp_path, "first", "a", "sh", "-c", "echo one > a").returncode == 0
    record = json.loads((tmp_path / "records" / "first.json").read_text())
    assert record["command"] == "sh -c 'echo one > a'"
    assert [made["path"] for made in record["products"]] == ["a"]
    assert step(tmp_path, "second", "b", "cp", "a", "b", after="first").returncode == 0
    for damage, message in (("onf\n", "a is not what step first made"), (None, "a, which step first made, is gone")):
        if damage is None:
            (tmp_path / "a").unlink()
        else:
            (tmp_path / "a").write_text(damage)
        done = step(tmp_path, "third", "c", "cp", "a", "c", after="first")
        assert done.returncode == 2
        assert done.stderr.startswith(f"distill: error: {message}")
        assert "delete records/first.json, and the same command repeats step first" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "records" / "third.json").exists()


def test_steps_that_have_all_cores_run_one_after_the_other(tmp_path: Path) -> None:
    """Whatever Snakemake starts at once: the speed of a model is measured alone."""
    (tmp_path / "records").mkdir()
    steps = []
    for name in ("one", "two"):
        options = ["--record", f"records/{name}.json", "--log", "log", "--cores", "2", "--makes", name]
        words = ["sh", "-c", f"date +%s.%N > {name}; sleep 0.5; date +%s.%N >> {name}"]
        command = [sys.executable, str(HERE / "step.py"), *options, "--", *words]
        environment = {name: value for name, value in CODE.items() if name != "SLURM_JOB_ID"} | {"DISTILL_CORES": "2"}
        steps.append(subprocess.Popen(command, cwd=tmp_path, env=environment))
    assert [process.wait() for process in steps] == [0, 0]
    first, second = sorted([float(line) for line in (tmp_path / name).read_text().split()] for name in ("one", "two"))
    assert first[1] <= second[0]


def test_a_step_that_fails_has_no_record_and_says_why_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    done = step(tmp_path, "first", "a", "dst", "rerank", "none", "--weights", "1", "0", "0")
    assert done.returncode == 1
    assert done.stderr.startswith("distill: error: step first ended with status 2: dst: error: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "records" / "first.json").exists()


#: Moments of a kill: a file, relative to the folder of the workflow, that has just appeared.
MOMENTS = (
    "records/n_best.json", "corpus/manifest.json", "student/checkpoints/latest", "exported/student/model.bin",
    "records/choose_parallel.json", "made/parallel.scores", "records/filter_parallel.json", "records/align.json",
    "finetuned/checkpoints/latest", "scores.json",
)  # fmt: skip

#: How many of them, a minute each; DST_KILL_MOMENTS=10 takes all.
KILLS = int(os.environ.get("DST_KILL_MOMENTS", "2"))


def damage_a_translation(config: Path) -> None:
    """Damage what a finished step made: the next step that reads it refuses it, until its record is deleted."""
    out = config.parent / "out"
    (out / "made" / "parallel.translation").write_text("damaged\n")
    (out / "records" / "filter_parallel.json").unlink()
    (out / "report.md").unlink(missing_ok=True)
    done = run(config)
    assert done.returncode == 1
    (line,) = said(done)
    assert "made/parallel.translation is not what step choose_parallel made" in line
    (out / "records" / "choose_parallel.json").unlink()


@pytest.mark.slow
@pytest.mark.extended
def test_a_workflow_that_is_killed_ends_with_the_same_bytes(models: Path, tmp_path: Path, empty_store: Path) -> None:
    more = {"alignments": {"command": ALIGNER}, "finetune": {"updates": 6}, "export": {"shortlist": True}}
    whole, killed = (configure(models, tmp_path / name, **more) for name in ("whole", "killed"))
    for config in (whole, killed):
        (config.parent / "out").mkdir()
        shutil.copy(empty_store, config.parent / "out" / "mlflow.db")
    done = run(whole)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    out = killed.parent / "out"
    kills = 0
    for moment in sorted(MOMENTS[:KILLS], key=lambda moment: (whole.parent / "out" / moment).stat().st_mtime):
        if (out / moment).exists():  # two steps of which either may be first
            continue
        with started(command(killed), CODE, cwd=killed.parent, stdout=-3, stderr=-3) as process:
            wait_until(lambda: (out / moment).exists() or process.poll() is not None)  # noqa: B023
            assert process.poll() is None, f"ended before {moment}"
        kills += 1
    assert kills >= min(KILLS, 4)
    damage_a_translation(killed)
    done = run(killed)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    expected, found = products(whole.parent / "out"), products(out)
    assert found.keys() == expected.keys()
    assert [name for name, content in found.items() if content != expected[name]] == []
    assert run(killed, "--dry-run").stdout.count("rule ") == 0

    client = MlflowClient(f"sqlite:///{out}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("dstransformer").experiment_id])
    (parent,) = (one for one in runs if "mlflow.parentRunId" not in one.data.tags)
    children = [one for one in runs if one.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert {one.info.status for one in runs} == {"FINISHED"}
    assert sorted(one.info.run_name for one in children) == ["finetuned", "student"]
    assert {file.path for file in client.list_artifacts(parent.info.run_id)} == {"report.md", "report.json"}

    report = json.loads((out / "report.json").read_text())
    measured = ["finetuned.ct2", "shipped.ct2", "student.ct2", "student.torch", "teacher.ct2", "teacher.torch"]
    assert sorted(report["speed"]) == sorted(report["bytes"]) == measured
    systems = ["teacher", "student", "teacher-int8", "student-int8", "finetuned-int8", "shipped"]
    assert [Path(score["system"]).name for score in report["scores"]] == [f"toy.{name}" for name in systems]
    assert sorted(report["shipped"]["validation_bleu"]) == ["finetuned", "student"]
    assert all(
        {"bleu_difference", "bytes_factor", "sentences_per_second_factor"} <= step.keys() for step in report["chains"]
    )
    assert parent.data.metrics["cost/core_hours"] == report["cost"]["core_hours"] > 0

    (out / "records" / "score_mono.json").unlink()  # what came of it is complete
    assert "rule score:" in run(killed, "--dry-run").stdout
