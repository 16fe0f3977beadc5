"""``dst reproduce``: a training done again from its record."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.data.prep import refuses
from support.processes.forks import REPOSITORY
from support.processes.launching import run_dst

from dstransformer.cli.program import run as dst
from dstransformer.config import load_config
from dstransformer.errors import DataError
from dstransformer.extras.reproduction import record as records
from dstransformer.extras.reproduction.record import Record
from dstransformer.extras.reproduction.reproduce import _compare_training, _is_finished


def changed(plain_run: Path, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The file of the run's record, with a change."""
    records.read(plain_run).write(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def built_by(command: str) -> Callable[[dict[str, Any]], object]:
    """A change to a record: another command built the corpus, which is gone."""

    def change(content: dict[str, Any]) -> None:
        content["provenance"]["corpus"] = "/nowhere"
        content["provenance"]["corpus_identity"]["command"] = command

    return change


def started_from_another(content: dict[str, Any]) -> None:
    """A change to a record: the training started from a bundle that is gone."""
    content["provenance"]["parent"] = {"path": "/nowhere", "weights_sha256": "0" * 64}


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The error line of ``dst reproduce``, which a mistake of the user ends."""
    capsys.readouterr()
    return refuses(capsys, dst(["reproduce", *map(str, arguments)]))


STORED = REPOSITORY / "tests" / "data" / "formats" / "1"


@pytest.mark.slow
def test_where_nothing_differs_every_bit_is_the_same(
    plain_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training is prepared for a launcher, which computes it; the same command then judges it."""
    out = tmp_path / "again"
    run = ["reproduce", str(plain_run), "--out", str(out)]
    assert dst([*run, "--prepare-only"]) == 0
    threads, program, *arguments = shlex.split(capsys.readouterr().err.splitlines()[-1].partition("with: ")[2])
    assert threads.startswith("OMP_NUM_THREADS=")
    assert program == "dst"
    trained = run_dst(*arguments)
    assert trained.returncode == 0, trained.stderr
    assert dst([*run, "--json"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("differs   nothing: all figures must be equal\n"), said.err
    assert "training  in" not in said.err
    assert not list(out.glob("train.log"))
    report = json.loads(said.out)
    assert report["reproduced"]
    assert report["same_weights"]
    assert report["differences"] == {}
    assert report["training_loss"]["largest_difference"] == 0
    names = {f"{split} {name}" for split in ("validation", "test") for name in ("loss", "perplexity", "bleu", "chrf")}
    assert names <= {figure["name"] for figure in report["figures"]}
    assert {figure["verdict"] for figure in report["figures"]} == {"equal"}
    weights = [run / "bundle" / "model.safetensors" for run in (plain_run, out / "run")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.slow
def test_elsewhere_figures_have_bounds_and_the_corpus_is_built_again(plain_run: Path, tmp_path: Path) -> None:
    """The record says another version of PyTorch, a loss that is a little different and a chrF that is far off."""

    def change(content: dict[str, Any]) -> None:
        content["provenance"]["versions"]["torch"] = "1.0"
        content["provenance"]["corpus"] = "/nowhere"
        content["figures"]["test"]["loss"] += 1e-3
        content["figures"]["test"]["chrf"] += 50.0

    record = changed(plain_run, tmp_path / "record.json", change)
    done = run_dst("reproduce", str(record), "--out", str(tmp_path / "again"), "--json")
    assert done.returncode == 1, done.stderr
    first, second, *_ = done.stderr.splitlines()
    assert first.startswith("differs   torch: recorded 1.0, here ")
    assert second.startswith("corpus    built again in ")
    report = json.loads(done.stdout)
    assert not report["reproduced"]
    assert report["same_weights"]
    verdicts = {figure["name"]: figure["verdict"] for figure in report["figures"]}
    assert verdicts.pop("test chrf") == "OUTSIDE the bound"
    assert verdicts.pop("test loss") == "within the bound"
    assert set(verdicts.values()) == {"equal"}
    assert {file.name for file in (tmp_path / "again").iterdir()} >= {"record.json", "corpus", "run", "train.log"}


@pytest.mark.slow
def test_weights_are_evaluated_again(plain_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(plain_run / "bundle", bundle)
    for name, source in (("plain", plain_run), ("bundle", bundle)):
        assert dst(["reproduce", str(source), "--evaluate-only", "--out", str(tmp_path / f"of-{name}")]) == 0
        assert capsys.readouterr().out.splitlines()[-1].startswith(f"{name} is reproduced: every figure is equal")
    weights = bundle / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert "model.safetensors" in refused(capsys, bundle, "--evaluate-only", "--out", tmp_path / "damaged")


class TestRefused:
    def test_a_training_with_other_values(self, plain_run: Path, tmp_path: Path) -> None:
        def change(content: dict[str, Any]) -> None:
            content["provenance"]["config"]["decoding"]["beam_size"] = 3

        record = changed(plain_run, tmp_path / "record.json", change)
        shutil.copytree(plain_run, tmp_path / "again" / "run")
        shutil.copy(record, tmp_path / "again" / "record.json")
        found = records.read(record)
        with pytest.raises(DataError, match="was not trained as plain was"):
            _compare_training(found, tmp_path / "again" / "run", None, None)  # type: ignore[arg-type]
        assert not _is_finished(tmp_path / "again" / "run", found)
        assert _is_finished(tmp_path / "again" / "run", records.read(plain_run))

    def test_another_corpus(self, plain_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        found = refused(capsys, plain_run, "--corpus", STORED / "corpus", "--out", tmp_path / "again")
        assert f"{STORED / 'corpus'} is not the corpus of plain: " in found

    @pytest.mark.parametrize(
        ("change", "options", "parts"),
        [
            (
                built_by("dst-prep build --source files --src-lang en --tgt-lang de --src a.en --tgt a.de"),
                ["--inputs", "HERE"],
                ["the corpus cannot be built again (", "a.en", "--inputs"],
            ),
            (built_by("dst-prep build --source toy --wor elsewhere"), [], ["has --wor, which none records"]),
            (built_by("dst-prep build --source 'toy"), [], ["is damaged (No closing quotation)"]),
            (started_from_another, [], ["give it with --init"]),
            (started_from_another, ["--init", "RUN"], ["not 000000000000; give that one with --init"]),
            (lambda content: content.update(format_version=2), [], ["has format version 2"]),
            (lambda content: content.pop("figures"), [], ["is damaged (figures: "]),
            (lambda content: content["provenance"].update(world_size=-1), [], ["provenance.world_size"]),
            (lambda content: content["provenance"]["corpus_identity"].update(command="rm -r /"), [], ["command: "]),
            (lambda content: content["provenance"]["config"].update(news={}), [], ["of plain: unknown key 'news'"]),
        ],
    )
    def test_a_record_that_is_damaged_or_whose_corpus_or_parent_is_gone(
        self,
        plain_run: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        change: Callable[[dict[str, Any]], object],
        options: list[str],
        parts: list[str],
    ) -> None:
        record = changed(plain_run, tmp_path / "record.json", change)
        places = {"RUN": plain_run, "HERE": tmp_path}
        given = [places.get(word, word) for word in options]
        found = refused(capsys, record, *given, "--out", tmp_path / "again")
        assert [part for part in parts if part not in found] == []
        assert not (tmp_path / "again" / "run").exists(), "nothing is trained"

    def test_options_that_do_not_fit(self, plain_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run, record = plain_run, changed(plain_run, tmp_path / "record.json", lambda _: None)
        out = ["--out", tmp_path / "again"]
        assert "cannot be split evenly over 3 processes" in refused(capsys, run, "--processes", "3", *out)
        assert f"{record} holds no weights" in refused(capsys, record, "--evaluate-only", *out)
        assert "leave out --init" in refused(capsys, run, "--evaluate-only", "--init", run, *out)
        assert "0 processes cannot train" in refused(capsys, run, "--processes", "0", *out)
        assert "leave out --evaluate-only" in refused(
            capsys, run, "--evaluate-only", "--write-record", tmp_path / "new.json"
        )
        assert "already exists" in refused(capsys, run, "--write-record", record)
        assert not (tmp_path / "again").exists()

    def test_a_folder_of_something_else(
        self, plain_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "notes.txt").touch()
        assert "exists and is not a reproduction" in refused(capsys, plain_run, "--out", tmp_path)
        other = tmp_path / "other"
        other.mkdir()
        changed(plain_run, other / "record.json", lambda content: content["figures"].pop("test"))
        assert "is the reproduction of another training" in refused(capsys, plain_run, "--out", other)

    def test_what_is_no_finished_training(
        self, plain_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        checkpoint = plain_run / "checkpoints" / "step-00000009"
        assert "is not the final bundle of a training" in refused(capsys, checkpoint, "--out", tmp_path / "again")
        bundle = tmp_path / "bundle"
        shutil.copytree(plain_run / "bundle", bundle)
        provenance = json.loads((bundle / "provenance.json").read_text())
        (bundle / "provenance.json").write_text(json.dumps(provenance | {"imported": {"format": "MarianMTModel"}}))
        assert "was imported" in refused(capsys, bundle, "--out", tmp_path / "again")


def test_a_record_is_read_as_it_was_written(plain_run: Path, tmp_path: Path) -> None:
    before = records.read(plain_run)
    before.write(tmp_path / "record.json")
    after: Record = records.read(tmp_path / "record.json")
    assert after == before
    assert after.corpus is not None
    assert after.figures["test"].keys() >= {"loss", "bleu", "chrf"}
    assert [step for step, _ in after.training_loss] == [2, 4, 6, 8, 10, 12]


def test_a_written_record_names_no_place_of_this_machine(
    plain_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    assert dst(["reproduce", str(plain_run), "--write-record", str(path)]) == 0
    assert "does the training again" in capsys.readouterr().out
    assert str(plain_run.parent) not in path.read_text()
    assert records.read(path).figures == records.read(plain_run).figures


def test_the_record_of_the_quickstart_is_of_its_training() -> None:
    found = records.read(REPOSITORY / "benchmarks" / "results" / "quickstart.json")
    today = load_config("toy", ["batch.micro_batches=2"], ["zero1", "fp32"])
    assert found.config.model_dump(exclude={"tracking"}) == today.model_dump(exclude={"tracking"})
    assert found.world_size == 2
    assert found.corpus is not None
    assert found.corpus["command"].startswith("dst-prep build --source toy ")
    assert "--pairs 50000 --seed 1 --valid-size 500 " in found.corpus["command"]
    assert f"BLEU {found.figures['test']['bleu']:.2f}" in (REPOSITORY / "benchmarks/results/runs.md").read_text()
