"""A run as a user sees it: what it prints and leaves, what can be made of it, and how the same command goes on."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.data.prep import refuses
from support.processes.forks import environment
from support.processes.launching import finish, forked, run_dst, wait_until
from support.training.manifests import change_manifest
from support.training.runs import TINY, losses, plain_options, records, trace

from data_prep.cli import main as dst_prep
from dstransformer.cli import main
from dstransformer.config import load_config
from dstransformer.training.checkpoints.format import EarlyStoppingState, read_checkpoint
from dstransformer.training.schedule import learning_rate


def provenance_of(bundle: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bundle / "provenance.json").read_text())
    return found


def resume(corpus: Path, run: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Give the command of the plain run again, with further overrides and without MLflow."""
    done = run_dst(*plain_options(corpus, run, "tracking.enabled=false", *overrides), "--json")
    assert done.returncode == 0, done.stderr
    return done


class TestStart:
    def test_it_announces_what_it_will_do(self, plain_run: Path, toy_corpus: Path) -> None:
        first = (plain_run.parent / "stderr").read_text().splitlines()[:7]
        for line, parts in zip(first, [
            (f"run       plain in {plain_run}",),
            (f"corpus    {toy_corpus}: en-de, 600 pairs, vocabulary 400",),
            ("model     ", "parameters, fp32, ZeRO stage 1"),
            ("hardware  1 rank: device ", "threads 1"),
            ("scores    bleu ranks checkpoints; BLEU with sacrebleu's tokenizer 13a",),
            ("plan      12 updates, about 0.",),
            (f"MLflow    sqlite:///{plain_run.parent}/mlflow.db",),
        ], strict=True):  # fmt: skip
            for part in parts:
                assert part in line

    def test_a_dry_run_prints_figures_and_warnings_and_writes_nothing(
        self, toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        where = ["--corpus", str(toy_corpus), "--run", str(tmp_path / "run"), "--dry-run"]
        assert main(["train", "base", *where, "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert figures["estimate"]["pairs"] == 600
        assert figures["estimate"]["updates_per_epoch"] >= 1
        assert set(figures["model_state_gib"]) == {"zero0", "zero2", "zero3"}
        assert figures["ds_config"]["zero_optimization"]["stage"] == 1
        assert figures["config"]["model"]["d_model"] == 512
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert main(["train", "toy", *where, "--set", "training.max_updates=600000"]) == 0
        printed = capsys.readouterr().out
        assert "updates per epoch" in printed
        assert "model states zero2" in printed
        assert "warning: training.max_updates = 600,000 is " in printed
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("variables", [{"RANK": "3"}, {"SLURM_PROCID": "3"}, {"RANK": "1", "WORLD_SIZE": "2"}])
    def test_other_commands_ignore_launcher_variables(
        self, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert "nowhere" in refuses(capsys, main(["average", "nowhere", "--out", "out"]))
        assert main(["presets"]) == 0


class TestResult:
    def test_the_folder_holds_the_documented_files(self, plain_run: Path) -> None:
        names = {path.name for path in plain_run.iterdir()}
        assert {"config.yaml", "ds_config.json", "metrics.jsonl", "checkpoints", "bundle"} <= names
        steps = [f"step-{step:08}" for step in (3, 6, 9, 12)]
        assert (plain_run / "checkpoints" / "latest").read_text().strip() == steps[-1]
        assert sorted(path.name for path in (plain_run / "checkpoints").glob("step-*")) == steps
        files = {"dst.json", "model.safetensors", "config.yaml", "tokenizer.model", "provenance.json"}
        assert {path.name for path in (plain_run / "bundle").iterdir()} == files
        assert '"launcher": "no launcher"' in (plain_run / "logs" / "start.json").read_text()

    def test_an_average_that_reaches_into_the_warmup_competes_on_validation(self, plain_run: Path) -> None:
        provenance, printed = provenance_of(plain_run / "bundle"), (plain_run.parent / "stdout").read_text()
        final = provenance["final"]
        assert final["steps"]["average"] == [6, 9, 12]
        assert final["steps"]["last"] == [12]
        assert final["metric"] == "bleu"
        assert provenance["averaged_steps"] == final["steps"][final["chosen"]]
        assert final["scores"][final["chosen"]] == max(final["scores"].values())
        assert "on validation: the average of steps 6, 9, 12 bleu " in printed
        assert "reach back into the warm-up (schedule.warmup_steps = 5)" in printed
        metrics = {
            step: read_checkpoint(plain_run / "checkpoints" / f"step-{step:08}").metric for step in (3, 6, 9, 12)
        }
        assert metrics == {3: None, 6: "bleu_first_6", 9: None, 12: "bleu_first_6"}

    def test_german_has_compound_split_bleu_and_the_cost_is_reported(
        self, plain_run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        printed, progress = ((plain_run.parent / name).read_text() for name in ("stdout", "stderr"))
        for kind in ("final_validation", "final_test"):
            (final,) = records(plain_run, kind)
            assert "nrefs:1" in final["bleu_signature"]
            assert 0 <= final["bleu_compound_split"] <= 100
            assert final["bleu_compound_split_signature"].endswith("|moses:de|quotes:plain|compounds:split")
        assert "test BLEU (compound-split) " in printed
        assert not any("bleu_compound_split" in name for line in records(plain_run, "valid") for name in line)
        costs = records(plain_run, "cost")
        assert [line["step"] for line in costs] == [2, 4, 6, 8, 10, 12, 12]
        for name in ("flops", "device_hours"):
            assert [line[name] for line in costs] == sorted(line[name] for line in costs)
        flops = costs[-1]["flops"]
        assert flops == costs[-2]["flops"] > 0
        assert f"training cost: {flops:.3g} FLOPs (" in printed
        assert f"{costs[-1]['overall_tokens_per_second']:,.0f} tokens/s with validation and checkpoints" in progress
        assert main(["table2", str(plain_run), "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["runs"]
        assert (found["flops_counted"], found["sources"], found["languages"]) == (flops, ["toy"], "en-de")

    def test_evaluate_gives_the_scores_of_training(
        self, plain_run: Path, toy_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        files = ["--src", str(tmp_path / "test.en")], [str(tmp_path / "test.de")]
        assert dst_prep(["text", str(toy_corpus), *files[0], "--tgt", *files[1]]) == 0
        capsys.readouterr()
        assert main(["evaluate", str(plain_run / "bundle"), *files[0], "--ref", *files[1], "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        (of_training,) = records(plain_run, "final_test")
        assert report["metrics"]["bleu"] == pytest.approx(of_training["bleu"], abs=0.01)
        assert report["signatures"]["bleu"] == of_training["bleu_signature"]
        assert set(report["metrics"]) == {"bleu", "chrf", "ter", "bleu_compound_split"}
        assert report["bundle"] == str(plain_run / "bundle")
        assert (report["beam_size"], report["length_penalty"], report["max_extra_tokens"]) == (2, 0.6, 5)
        assert (report["precision"], report["device"]) == ("fp32", "cpu")


@pytest.mark.slow
class TestTheSameCommandAgain:
    def test_a_longer_run_continues_the_same_mlflow_run_and_says_what_changed(
        self, plain_copy: Path, toy_corpus: Path
    ) -> None:
        tracking = (plain_copy / "tracking.json").read_text()
        changes = ("training.max_updates=14", "schedule.scale=0.5")
        done = run_dst(*plain_options(toy_corpus, plain_copy, *changes), "--resume", "auto", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads((plain_copy / "tracking.json").read_text())["run_id"] == json.loads(tracking)["run_id"]
        assert trace(plain_copy, "step") == [2, 4, 6, 8, 10, 12, 14]
        assert [line for line in done.stderr.splitlines() if "from update 13 on" in line] == [
            "dst: from update 13 on schedule.scale is 0.5; it was 1.0",
            "dst: from update 13 on training.max_updates is 14; it was 12",
        ]
        outcome = json.loads(done.stdout)
        assert (outcome["step"], outcome["stopped_by"]) == (14, None)
        assert {"bleu", "loss", "perplexity"} <= outcome["evaluations"]["test"]["metrics"].keys()
        assert outcome["final"] == provenance_of(plain_copy / "bundle")["final"]

    def test_a_run_without_its_final_bundle_is_finished(self, plain_copy: Path, toy_corpus: Path) -> None:
        """Without the checkpoint that the disk has damaged, too."""
        shutil.rmtree(plain_copy / "bundle")
        damaged = plain_copy / "checkpoints" / "step-00000009" / "bundle" / "model.safetensors"
        content = bytearray(damaged.read_bytes())
        content[-1] ^= 1
        damaged.write_bytes(content)
        done = resume(toy_corpus, plain_copy, "checkpoint.final=best_on_validation")
        assert f"{damaged} does not match its hash" in done.stderr
        assert "the final bundle is made without this checkpoint" in done.stderr
        assert 'from update 13 on checkpoint.final is "best_on_validation"; it was "average"' in done.stderr
        final = provenance_of(plain_copy / "bundle")["final"]
        assert final["steps"]["average"] == [6, 12]
        assert final["reason"] == "the best on validation, checkpoint.final = best_on_validation"

    def test_a_checkpoint_of_a_stop_gets_the_score_that_it_lacks(self, plain_copy: Path, toy_corpus: Path) -> None:
        """A stop request prevents the validation that is due with the checkpoint; the resumed run makes up for it."""
        shutil.rmtree(plain_copy / "bundle")
        for step in (9, 12):
            shutil.rmtree(plain_copy / "checkpoints" / f"step-{step:08d}")
        manifest = plain_copy / "checkpoints" / "step-00000006" / "manifest.json"
        scored = read_checkpoint(manifest.parent)
        never = replace(scored.state, early_stopping=EarlyStoppingState())
        manifest.write_text(replace(scored, state=never, score=None, metric=None, interim=True).manifest_text)
        resume(toy_corpus, plain_copy)
        found = read_checkpoint(manifest.parent)
        assert (found.score, found.metric, found.interim) == (scored.score, scored.metric, False)
        assert found.state == scored.state

    def test_a_checkpoint_that_a_stopping_run_writes_meanwhile_is_resumed_from(
        self, plain_copy: Path, toy_corpus: Path, tmp_path: Path
    ) -> None:
        """It appears before the new run holds the folder, and the run looks for one when it does."""
        shutil.rmtree(plain_copy / "bundle")
        newest = plain_copy / "checkpoints" / "step-00000012"
        manifest = (newest / "manifest.json").read_bytes()
        newest.rename(tmp_path / "not yet")
        program = tmp_path / "race.py"
        program.write_text(f"""
import sys
from pathlib import Path
from dstransformer.cli import main
from dstransformer.training import experiment

def hold(*arguments, hold=experiment.hold_run_folder):
    Path({str(tmp_path / "not yet")!r}).rename({str(newest)!r})
    return hold(*arguments)

experiment.hold_run_folder = hold
sys.exit(main(sys.argv[1:]))
""")
        options = plain_options(toy_corpus, plain_copy, "tracking.enabled=false")
        with forked([str(program), *options], environment()) as process:
            _, errors = finish(process)
        assert process.returncode == 0, errors
        assert (newest / "manifest.json").read_bytes() == manifest, "no update was computed again"

    def test_a_second_interrupt_ends_the_run_at_once(self, tmp_path: Path, toy_corpus: Path) -> None:
        run = tmp_path / "run"
        # An update is slow enough for both interrupts to arrive during it.
        slow = (
            "training.max_updates=99", "validation.every=99", "batch.src_tokens=20000", "batch.tgt_tokens=20000",
            "batch.micro_batches=250", "checkpoint.every_updates=1", "training.log_every=1", "tracking.enabled=false",
        )  # fmt: skip
        command = ["train", "toy", "--corpus", str(toy_corpus), "--run", str(run), "--set", *TINY, *slow]
        with forked(["-m", "dstransformer", *command], environment()) as process:
            wait_until(lambda: (run / "metrics.jsonl").exists() and 2 in trace(run, "step"), running=[process])
            process.send_signal(signal.SIGINT)
            wait_until(lambda: "dst: SIGINT" in process.outputs[1].read_text(), running=[process])
            process.send_signal(signal.SIGINT)
            _, errors = finish(process)
        assert process.returncode == 130, errors
        assert "SIGINT: the run stops after this update and writes a checkpoint; again stops it at once" in errors
        assert "dst: interrupted" in errors
        assert "training interrupted" in errors
        assert f"run the same command to resume from {run / 'checkpoints' / 'step-000000'}" in errors
        assert "training failed" not in errors
        assert "Traceback" not in errors


@pytest.mark.slow
def test_training_stops_early_and_stays_stopped(toy_corpus: Path, tmp_path: Path) -> None:
    """BLEU of an untrained model is 0 at every validation, so the first is the best."""
    run = tmp_path / "patient"
    settings = [*TINY, "training.max_updates=40", "validation.every=3", "validation.patience=2", "loss.r_drop=1"]
    settings += ["checkpoint.keep_last=9", "checkpoint.every_updates=3", "schedule.warmup_steps=6"]
    command = ["train", "toy", "--corpus", str(toy_corpus), "--run", str(run), "--set", *settings]
    done = run_dst(*command)
    assert done.returncode == 0, done.stderr
    assert "test BLEU (first 4 sentences)" in done.stdout
    assert "update 9  stopping early: no better bleu_first_4 on validation in the last 2 validations" in done.stderr

    def early_stopping(step: int) -> dict[str, Any]:
        manifest = json.loads((run / "checkpoints" / f"step-{step:08}" / "manifest.json").read_text())
        found: dict[str, Any] = manifest["early_stopping"]
        return found

    best, last = early_stopping(3), early_stopping(9)
    assert "tok:13a" in last["signature"]
    assert (last["metric"], last["best"], last["validations"]) == ("bleu_first_4", 0.0, 2)
    assert (best["best"], best["validations"]) == (0.0, 0)
    again = run_dst(*command, "--json")
    assert json.loads(again.stdout)["step"] == 9, again.stderr

    # As if a signal had stopped the run after update 6, before its validation.
    shutil.rmtree(run / "bundle")
    shutil.rmtree(run / "checkpoints" / "step-00000009")
    (run / "checkpoints" / "latest").write_text("step-00000006\n")
    unscored = {"score": None, "metric": None, "early_stopping": best}
    change_manifest(run / "checkpoints" / "step-00000006", lambda content: content.update(unscored))
    resumed = run_dst(*command, "--json")
    assert json.loads(resumed.stdout)["step"] == 9, "the resumed run makes up for the validation"
    assert early_stopping(9) == last


@pytest.mark.slow
def test_a_run_follows_its_schedule_and_says_where_an_extension_jumps(toy_corpus: Path, tmp_path: Path) -> None:
    run, kind = tmp_path / "run", ["schedule.kind=cosine", "schedule.final=0.1", "schedule.warmup_steps=2"]
    mine = [value for value in TINY if not value.startswith("schedule.")] + kind
    command = ["train", "toy", "--corpus", str(toy_corpus), "--run", str(run), "--set", *mine]
    done = run_dst(*command, "training.max_updates=6")
    assert done.returncode == 0, done.stderr
    longer = run_dst(*command, "training.max_updates=9")
    assert longer.returncode == 0, longer.stderr
    (said,) = (line for line in longer.stderr.splitlines() if "the learning rate of update 7 jumps from" in line)
    assert "cosine ends with training.max_updates, 6 before" in said
    schedule = load_config("toy", kind).schedule
    expected = [learning_rate(step, 32, schedule, 6 if step < 7 else 9) for step in range(1, 10)]
    assert trace(run, "lr") == pytest.approx(expected)
    assert len(losses(run)) == 9
