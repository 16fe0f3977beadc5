"""The start and the end of runs as a user sees them: where they may go, what they print, what they leave."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support.processes.forks import environment
from support.processes.launching import finish, forked, run_dst, wait_until
from support.training.manifests import change_manifest
from support.training.runs import TINY

from dstransformer.training.checkpoints.format import EarlyStoppingState, read_checkpoint

#: A checkpoint every second update; the warm-up ends with the sixth update.
SHORT = ["training.max_updates=8", "checkpoint.every_updates=2", "checkpoint.keep_last=4", "schedule.warmup_steps=6"]


def train_options(corpus: Path, run: Path, *overrides: str) -> list[str]:
    options = ["train", "toy", "--corpus", str(corpus), "--run", str(run)]
    return [*options, "--set", *TINY, *SHORT, *overrides]


@pytest.fixture(scope="module")
def trained(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A run whose average would reach back into its warm-up; its folder, stdout and stderr."""
    run = tmp_path_factory.mktemp("runs") / "short"
    done = run_dst(*train_options(toy_corpus, run, "checkpoint.average_last=4", "validation.every=4"))
    assert done.returncode == 0, done.stderr
    return run, done.stdout, done.stderr


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.startswith("dst: error:")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert len(lines[0]) < 600
    for part in parts:
        assert part in lines[0]


class TestEnd:
    def test_an_average_that_reaches_into_the_warmup_competes_on_validation(
        self, trained: tuple[Path, str, str]
    ) -> None:
        run, printed, _ = trained
        provenance = json.loads((run / "bundle" / "provenance.json").read_text())
        final = provenance["final"]
        assert final["steps"]["average"] == [6, 8]
        assert final["steps"]["last"] == [8]
        assert final["metric"] == "bleu_first_4"
        assert provenance["averaged_steps"] == final["steps"][final["chosen"]]
        best = max(final["scores"].values())
        assert final["scores"][final["chosen"]] == best
        assert "on validation: the average of steps 6, 8 bleu_first_4" in printed
        assert "reach back into the warm-up (schedule.warmup_steps = 6)" in printed
        assert "validation BLEU (first 4 sentences)" in printed

    def test_the_last_checkpoint_is_scored_and_the_metric_named(self, trained: tuple[Path, str, str]) -> None:
        checkpoints = trained[0] / "checkpoints"
        scores = {
            path.parent.name: json.loads(path.read_text())["metric"] for path in checkpoints.glob("*/manifest.json")
        }
        assert scores == {
            "step-00000002": None, "step-00000004": "bleu_first_4",
            "step-00000006": None, "step-00000008": "bleu_first_4",
        }  # fmt: skip
        lines = [json.loads(line) for line in (trained[0] / "metrics.jsonl").read_text().splitlines()]
        (final,) = (line for line in lines if line["kind"] == "final_validation")
        assert "bleu" not in final
        assert "nrefs:1" in final["bleu_first_4_signature"]

    def test_german_has_compound_split_bleu_and_the_cost_is_reported(self, trained: tuple[Path, str, str]) -> None:
        run, printed, progress = trained
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for kind in ("final_validation", "final_test"):
            (final,) = (line for line in lines if line["kind"] == kind)
            assert 0 <= final["bleu_compound_split_first_4"] <= 100
            assert final["bleu_compound_split_first_4_signature"].endswith("|moses:de|quotes:plain|compounds:split")
        assert "test BLEU (compound-split) (first 4 sentences) " in printed
        assert not any("bleu_compound_split" in name for line in lines if line["kind"] == "valid" for name in line)
        costs = [line for line in lines if line["kind"] == "cost"]
        flops = [line["flops"] for line in costs]
        assert [line["step"] for line in costs] == [*range(1, 9), 8]
        assert flops == sorted(flops)
        assert flops[-1] == flops[-2] > 0
        hours = [line["device_hours"] for line in costs]
        assert hours == sorted(hours)
        assert f"training cost: {flops[-1]:.3g} FLOPs (" in printed
        overall = f"{costs[-1]['overall_tokens_per_second']:,.0f} tokens/s with validation and checkpoints"
        assert overall in progress
        told = run_dst("table2", str(run), "--json")
        assert told.returncode == 0, told.stderr
        (found,) = json.loads(told.stdout)["runs"]
        assert (found["flops_counted"], found["sources"], found["languages"]) == (flops[-1], ["toy"], "en-de")

    def test_a_run_without_its_final_bundle_is_finished_on_resuming(
        self, trained: tuple[Path, str, str], toy_corpus: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "again"
        shutil.copytree(trained[0], run)
        shutil.rmtree(run / "bundle")
        settings = ("checkpoint.average_last=4", "validation.every=4", "checkpoint.final=best_on_validation")
        done = run_dst(*train_options(toy_corpus, run, *settings))
        assert done.returncode == 0, done.stderr
        assert 'from update 9 on checkpoint.final is "best_on_validation"; it was "average"' in done.stderr
        final = json.loads((run / "bundle" / "provenance.json").read_text())["final"]
        assert final["reason"] == "the best on validation, checkpoint.final = best_on_validation"

    def test_a_checkpoint_that_the_disk_has_damaged_is_left_out_of_the_average(
        self, trained: tuple[Path, str, str], toy_corpus: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        shutil.copytree(trained[0], run)
        shutil.rmtree(run / "bundle")
        damaged = run / "checkpoints" / "step-00000006" / "bundle" / "model.safetensors"
        content = bytearray(damaged.read_bytes())
        content[-1] ^= 1
        damaged.write_bytes(content)
        changes = "checkpoint.average_last=4", "validation.every=4", "schedule.warmup_steps=3"
        done = run_dst(*train_options(toy_corpus, run, *changes))
        assert done.returncode == 0, done.stderr
        assert f"{damaged} does not match its hash" in done.stderr
        assert "the final bundle is made without this checkpoint" in done.stderr
        final = json.loads((run / "bundle" / "provenance.json").read_text())["final"]
        assert final["steps"]["average"] == [4, 8]

    def test_a_checkpoint_of_a_stop_gets_the_score_that_it_lacks(
        self, trained: tuple[Path, str, str], toy_corpus: Path, tmp_path: Path
    ) -> None:
        """A stop request prevents the validation that is due with the checkpoint; the resumed run makes up for it."""
        run = tmp_path / "run"
        shutil.copytree(trained[0], run)
        shutil.rmtree(run / "bundle")
        for step in (6, 8):
            shutil.rmtree(run / "checkpoints" / f"step-{step:08d}")
        manifest = run / "checkpoints" / "step-00000004" / "manifest.json"
        scored = read_checkpoint(manifest.parent)
        never = replace(scored.state, early_stopping=EarlyStoppingState())
        stopped = replace(scored, state=never, score=None, metric=None, interim=True)
        manifest.write_text(stopped.manifest_text)
        changes = "checkpoint.average_last=4", "validation.every=4"
        done = run_dst(*train_options(toy_corpus, run, *changes))
        assert done.returncode == 0, done.stderr
        found = read_checkpoint(manifest.parent)
        assert (found.score, found.metric, found.interim) == (scored.score, scored.metric, False)
        assert found.state == scored.state

    def test_a_checkpoint_that_a_stopping_run_writes_meanwhile_is_resumed_from(
        self, trained: tuple[Path, str, str], toy_corpus: Path, tmp_path: Path
    ) -> None:
        """It appears before the new run holds the folder, and the run looks for one when it does."""
        run = tmp_path / "run"
        shutil.copytree(trained[0], run)
        shutil.rmtree(run / "bundle")
        newest = run / "checkpoints" / "step-00000008"
        manifest = (newest / "manifest.json").read_bytes()
        newest.rename(tmp_path / "not yet")
        program = tmp_path / "race.py"
        program.write_text(f"""
import sys
from pathlib import Path
from dstransformer.cli import main
from dstransformer.distributed.supervision.session import Session

def hold(*arguments, hold=Session.hold_run_folder):
    Path({str(tmp_path / "not yet")!r}).rename({str(newest)!r})
    return hold(*arguments)

Session.hold_run_folder = hold
sys.exit(main(sys.argv[1:]))
""")
        options = train_options(toy_corpus, run, "checkpoint.average_last=4", "validation.every=4")
        with forked([str(program), *options], environment()) as process:
            _, errors = finish(process)
        assert process.returncode == 0, errors
        assert (newest / "manifest.json").read_bytes() == manifest, "no update was computed again"

    def test_training_stops_early_and_stays_stopped(self, toy_corpus: Path, tmp_path: Path) -> None:
        # BLEU of an untrained model is 0 at every validation, so the first is the best.
        run = tmp_path / "patient"
        settings = ("training.max_updates=40", "validation.every=3", "validation.patience=2", "loss.r_drop=1")
        settings += ("checkpoint.keep_last=9", "checkpoint.every_updates=3")
        done = run_dst(*train_options(toy_corpus, run, *settings), "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["step"] == 9
        assert "update 9  stopping early: no better bleu_first_4 on validation in the last 2 validations" in done.stderr
        latest = json.loads((run / "checkpoints" / "step-00000009" / "manifest.json").read_text())
        assert "tok:13a" in latest["early_stopping"].pop("signature")
        assert latest["early_stopping"] == {"metric": "bleu_first_4", "best": 0.0, "validations": 2}
        best = json.loads((run / "checkpoints" / "step-00000003" / "manifest.json").read_text())
        assert (best["early_stopping"]["best"], best["early_stopping"]["validations"]) == (0.0, 0)
        again = run_dst(*train_options(toy_corpus, run, *settings), "--json")
        assert json.loads(again.stdout)["step"] == 9, again.stderr

        # As if a signal had stopped the run after update 6, before its validation.
        shutil.rmtree(run / "bundle")
        shutil.rmtree(run / "checkpoints" / "step-00000009")
        (run / "checkpoints" / "latest").write_text("step-00000006\n")
        unscored = {"score": None, "metric": None, "early_stopping": best["early_stopping"]}
        change_manifest(run / "checkpoints" / "step-00000006", lambda content: content.update(unscored))
        resumed = run_dst(*train_options(toy_corpus, run, *settings), "--json")
        assert json.loads(resumed.stdout)["step"] == 9, "the resumed run makes up for the validation"
        state = json.loads((run / "checkpoints" / "step-00000009" / "manifest.json").read_text())
        del state["early_stopping"]["signature"]
        assert state["early_stopping"] == {"metric": "bleu_first_4", "best": 0.0, "validations": 2}

    def test_schedule_changes_are_reported(
        self, trained: tuple[Path, str, str], toy_corpus: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "again"
        shutil.copytree(trained[0], run)
        changes = ("training.max_updates=9", "schedule.scale=0.5", "checkpoint.average_last=4", "validation.every=4")
        done = run_dst(*train_options(toy_corpus, run, *changes))
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if "from update 9 on" in line]
        assert said == [
            "dst: from update 9 on schedule.scale is 0.5; it was 1.0",
            "dst: from update 9 on training.max_updates is 9; it was 8",
        ]


class TestAverage:
    def test_last_averages_the_newest_checkpoints(self, trained: tuple[Path, str, str], tmp_path: Path) -> None:
        run, out = trained[0], tmp_path / "bundle"
        refused(
            run_dst("average", str(run), "--last", "3", "--out", str(out)),
            "--last 3: 2 of the newest 3 checkpoints", "schedule.warmup_steps = 6", "--include-warmup",
        )  # fmt: skip
        done = run_dst("average", str(run), "--last", "2", "--out", str(out))
        assert done.stdout == f"{out}: the average of steps 6, 8\n", done.stderr
        again = ["average", str(run), "--last", "3", "--include-warmup", "--out", str(out)]
        refused(run_dst(*again), f"{out} already exists", "--overwrite")
        assert run_dst(*again, "--overwrite").stdout == f"{out}: the average of steps 4, 6, 8\n"

    def test_best_averages_the_best_checkpoints(self, trained: tuple[Path, str, str], tmp_path: Path) -> None:
        run, out = trained[0], tmp_path / "bundle"
        done = run_dst("average", str(run), "--best", "1", "--out", str(out))
        assert done.stdout == f"{out}: the average of steps 8\n", done.stderr
        refused(
            run_dst("average", str(run), "--best", "2", "--out", str(tmp_path / "other")),
            "has 1 checkpoint with a validation score", "1 more from before the end of its warm-up",
        )  # fmt: skip
        refused(run_dst("average", str(run), "--best", "1", "--last", "1", "--out", str(out)), "not allowed with")

    def test_a_checkpoint_is_never_overwritten(self, trained: tuple[Path, str, str]) -> None:
        bundle = trained[0] / "checkpoints" / "step-00000008" / "bundle"
        before = (bundle / "model.safetensors").read_bytes()
        done = run_dst("average", str(trained[0]), "--last", "2", "--out", str(bundle), "--overwrite")
        refused(done, "step-00000008 is a checkpoint")
        assert (bundle / "model.safetensors").read_bytes() == before


class TestStart:
    def test_it_announces_what_it_will_do(self, trained: tuple[Path, str, str], toy_corpus: Path) -> None:
        run, _, errors = trained
        first = errors.splitlines()[:7]
        for line, parts in zip(first, [
            (f"run       short in {run}",),
            (f"corpus    {toy_corpus}: en-de, 600 pairs, vocabulary 400",),
            ("model     ", "parameters, fp32, ZeRO stage 1"),
            ("hardware  1 rank: device ", "threads 1"),
            ("scores    bleu ranks checkpoints; BLEU with sacrebleu's tokenizer 13a",),
            ("plan      8 updates, about 0.",),
            ("MLflow    off (tracking.enabled)",),
        ], strict=True):  # fmt: skip
            for part in parts:
                assert part in line

    def test_a_run_refuses_a_folder_that_holds_something_else(self, toy_corpus: Path, tmp_path: Path) -> None:
        refused(run_dst(*train_options(toy_corpus, toy_corpus / "run")), f"{toy_corpus} is a corpus")
        assert not (toy_corpus / "run").exists()
        (tmp_path / "thesis.tex").touch()
        refused(run_dst(*train_options(toy_corpus, tmp_path)), "is not a run folder and not empty (thesis.tex)")

    @pytest.mark.parametrize(("variables", "parts"), [
        ({"RANK": "3", "WORLD_SIZE": "1"}, ["RANK=3 and WORLD_SIZE=1"]),
        ({"RANK": "3"}, ["RANK=3 and WORLD_SIZE=1"]),
        ({"WORLD_SIZE": "2"}, ["WORLD_SIZE=2 but no RANK", "unset WORLD_SIZE"]),
        ({"RANK": "x"}, ["RANK is 'x'"]),
    ])  # fmt: skip
    def test_inconsistent_launcher_variables_are_refused(
        self, toy_corpus: Path, tmp_path: Path, variables: dict[str, str], parts: list[str]
    ) -> None:
        done = run_dst(*train_options(toy_corpus, tmp_path / "run"), extra=variables)
        refused(done, *parts)
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("variables", [{"RANK": "3"}, {"SLURM_PROCID": "3"}, {"RANK": "1", "WORLD_SIZE": "2"}])
    def test_other_commands_ignore_launcher_variables(self, variables: dict[str, str]) -> None:
        refused(run_dst("average", "nowhere", "--out", "out", extra=variables), "nowhere")
        assert "base" in run_dst("presets", extra=variables).stdout

    @pytest.mark.parametrize(("override", "parts"), [
        ("training.seed=100000000000000000000000", ["training.seed"]),
        ("model.d_model=1000000000", ["model.d_model"]),
        ("model.d_ff=1000000", ["parameters: building it takes", "which has"]),
    ])  # fmt: skip
    def test_excessive_values_are_refused(
        self, toy_corpus: Path, tmp_path: Path, override: str, parts: list[str]
    ) -> None:
        wide = ("model.d_model=65536",) if "d_ff" in override else ()
        done = run_dst(*train_options(toy_corpus, tmp_path / "run", *wide, override))
        refused(done, *parts)
        assert not (tmp_path / "run").exists()

    def test_a_dry_run_warns_of_an_odd_plan(self, toy_corpus: Path, tmp_path: Path) -> None:
        options = train_options(toy_corpus, tmp_path / "run", "training.max_updates=600000", "checkpoint.keep_last=9")
        done = run_dst(*options, "--dry-run", extra={"WORLD_SIZE": "4"})
        assert done.returncode == 0, done.stderr
        assert "warning: training.max_updates = 600,000 is " in done.stdout
        told = json.loads(run_dst(*options, "--dry-run", "--json").stdout)["warnings"]
        assert "epochs of this corpus" in told[0]


def test_a_second_interrupt_ends_the_run_at_once(
    trained: tuple[Path, str, str], toy_corpus: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained[0], run)
    # The first validation is slow enough for both interrupts to arrive during it.
    slow = (
        "training.max_updates=99",
        "validation.every=1",
        "validation.bleu_sentences=0",
        "decoding.beam_size=48",
        "decoding.max_extra_tokens=999",
    )
    with forked(["-m", "dstransformer", *train_options(toy_corpus, run, *slow)], environment()) as process:
        wait_until(lambda: '"kind": "train", "step": 9' in (run / "metrics.jsonl").read_text(), running=[process])
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "dst: SIGINT" in process.outputs[1].read_text(), running=[process])
        process.send_signal(signal.SIGINT)
        _, errors = finish(process)
    assert process.returncode == 130, errors
    assert "SIGINT: the run stops after this update and writes a checkpoint; again stops it at once" in errors
    assert "dst: interrupted" in errors
    assert "training interrupted" in errors
    assert f"run the same command to resume from {run / 'checkpoints' / 'step-00000008'}" in errors
    assert "training failed" not in errors
    assert "Traceback" not in errors
