"""``dst`` as a user runs it: train, average, translate, evaluate, resume, and every kind of bad input."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mlflow
import pytest
from support.processes.forks import REPOSITORY, environment
from support.processes.launching import run_dst
from support.services.mlflow_runs import bundle_model
from support.training.runs import train_options


@pytest.fixture(scope="module")
def trained(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run trained by one process."""
    run = tmp_path_factory.mktemp("runs") / "tiny"
    done = run_dst(*train_options(toy_corpus, run), "--json")
    assert done.returncode == 0, done.stderr
    (run / "stdout.json").write_text(done.stdout)
    return run


@pytest.fixture(scope="module")
def held_out(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("text")
    src, ref = folder / "test.en", folder / "test.de"
    command = [sys.executable, "-m", "data_prep", "text", str(toy_corpus), "--src", str(src), "--tgt", str(ref)]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    return src, ref


class TestRunFolder:
    def test_it_holds_the_documented_files(self, trained: Path) -> None:
        names = {path.name for path in trained.iterdir()}
        assert {"config.yaml", "ds_config.json", "metrics.jsonl", "checkpoints", "bundle"} <= names
        assert (trained / "checkpoints" / "latest").read_text().strip() == "step-00000012"
        assert sorted(path.name for path in (trained / "checkpoints").glob("step-*")) == [
            "step-00000004",
            "step-00000008",
            "step-00000012",
        ]
        assert {path.name for path in (trained / "bundle").iterdir()} == {
            "model.safetensors",
            "config.yaml",
            "tokenizer.model",
            "provenance.json",
        }

    def test_metrics_hold_one_object_per_line(self, trained: Path) -> None:
        lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
        training = [line for line in lines if line["kind"] == "train"]
        assert [line["step"] for line in training] == [2, 4, 6, 8, 10, 12]
        for line in training:
            assert {"loss", "lr", "grad_norm", "src_tokens", "tgt_tokens", "tokens_per_second"} <= line.keys()
        assert [line["step"] for line in lines if line["kind"] == "valid"] == [6, 12]
        assert "nrefs:1" in next(line for line in lines if line["kind"] == "final_test")["bleu_signature"]

    def test_stdout_holds_only_json(self, trained: Path) -> None:
        outcome = json.loads((trained / "stdout.json").read_text())
        assert outcome["step"] == 12
        assert outcome["stopped_by"] is None
        assert {"bleu", "loss", "perplexity"} <= outcome["evaluations"]["test"]["metrics"].keys()
        assert outcome["averaged_steps"] == [4, 8, 12]
        final = outcome["final"]
        assert (final["chosen"], final["metric"]) == ("average", "bleu")
        assert final["steps"] == {"average": [4, 8, 12], "last": [12], "best": [12]}
        assert final["scores"]["last"] == final["scores"]["best"]
        assert json.loads((trained / "bundle" / "provenance.json").read_text())["final"] == final

    def test_mlflow_has_the_run(self, trained: Path) -> None:
        client = mlflow.MlflowClient(f"sqlite:///{trained.parent / 'mlflow.db'}")
        run_id = json.loads((trained / "tracking.json").read_text())["run_id"]
        run = client.get_run(run_id)
        assert run.info.status == "FINISHED"
        assert run.data.params["model.d_model"] == "32"
        assert {"train/loss", "valid/bleu_first_6", "final_test/bleu"} <= run.data.metrics.keys()
        assert {"plots", "samples"} <= {file.path for file in client.list_artifacts(run_id)}
        assert run.data.tags["git_revision"]
        assert run.inputs.dataset_inputs
        assert run.outputs.model_outputs

    def test_the_logged_model_translates(self, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        client = mlflow.MlflowClient(f"sqlite:///{trained.parent / 'mlflow.db'}")
        run_id = json.loads((trained / "tracking.json").read_text())["run_id"]
        model_id = bundle_model(client, client.get_run(run_id)).model_id
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{trained.parent / 'mlflow.db'}")
        model = mlflow.pyfunc.load_model(f"models:/{model_id}")
        answer = model.predict(["The old man reads a book."])
        assert len(answer) == 1
        assert isinstance(answer[0], str)


class TestDownstream:
    def test_translate_a_file(self, trained: Path, held_out: tuple[Path, Path], tmp_path: Path) -> None:
        out = tmp_path / "out.de"
        done = run_dst("translate", str(trained / "bundle"), str(held_out[0]), "--output", str(out))
        assert done.returncode == 0, done.stderr
        assert len(out.read_text().splitlines()) == len(held_out[0].read_text().splitlines())

    def test_translate_standard_input(self, trained: Path) -> None:
        command = [sys.executable, "-m", "dstransformer", "translate", str(trained)]
        done = subprocess.run(
            command, input="The man reads.\n\nA book.\n", env=environment(), capture_output=True, text=True, check=True
        )
        lines = done.stdout.split("\n")
        assert len(lines) == 4
        assert lines[1] == ""

    def test_evaluate_gives_the_scores_of_training(self, trained: Path, held_out: tuple[Path, Path]) -> None:
        src, ref = held_out
        done = run_dst("evaluate", str(trained / "bundle"), "--src", str(src), "--ref", str(ref), "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        of_training = json.loads((trained / "stdout.json").read_text())["evaluations"]["test"]
        assert report["metrics"]["bleu"] == pytest.approx(of_training["metrics"]["bleu"], abs=0.01)
        assert report["signatures"]["bleu"] == of_training["signatures"]["bleu"]
        assert set(report["metrics"]) == {"bleu", "chrf", "ter", "bleu_compound_split"}
        assert report["bundle"] == str(trained / "bundle")
        assert (report["beam_size"], report["length_penalty"], report["max_extra_tokens"]) == (2, 0.6, 5)
        assert (report["precision"], report["device"]) == ("fp32", "cpu")

    def test_average_reproduces_the_bundle_of_training(self, trained: Path, tmp_path: Path) -> None:
        done = run_dst("average", str(trained), "--last", "3", "--out", str(tmp_path / "bundle"))
        assert done.returncode == 0, done.stderr
        ours, theirs = (path / "model.safetensors" for path in (tmp_path / "bundle", trained / "bundle"))
        assert ours.read_bytes() == theirs.read_bytes()
        provenance = json.loads((tmp_path / "bundle" / "provenance.json").read_text())
        assert provenance["averaged_steps"] == [4, 8, 12]


class TestResume:
    def test_a_longer_run_continues_the_same_mlflow_run(self, trained: Path, toy_corpus: Path, tmp_path: Path) -> None:
        run = tmp_path / "tiny"
        shutil.copytree(trained, run)
        for name in ("mlflow.db", "mlartifacts"):
            source = trained.parent / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
        tracking = json.loads((run / "tracking.json").read_text())
        tracking["tracking_uri"] = f"sqlite:///{tmp_path / 'mlflow.db'}"
        (run / "tracking.json").write_text(json.dumps(tracking))
        done = run_dst(*train_options(toy_corpus, run, "training.max_updates=14"), "--resume", "auto")
        assert done.returncode == 0, done.stderr
        assert json.loads((run / "tracking.json").read_text())["run_id"] == tracking["run_id"]
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in steps if line["kind"] == "train"] == [2, 4, 6, 8, 10, 12, 14]

    def test_resume_never_refuses_an_existing_run(self, trained: Path, toy_corpus: Path) -> None:
        done = run_dst(*train_options(toy_corpus, trained), "--resume", "never")
        assert_refused(done, f"{trained} already holds a run, at step 12")

    def test_a_changed_model_is_refused(self, trained: Path, toy_corpus: Path) -> None:
        before = (trained / "config.yaml").read_text()
        done = run_dst(*train_options(toy_corpus, trained, "model.d_ff=128"))
        assert_refused(done, "model.d_ff is 128, but", "was trained with 64")
        done = run_dst(*train_options(toy_corpus, trained, "optimizer.name=muon"))
        assert_refused(done, "optimizer.name is muon, but", "was trained with adam")
        assert (trained / "config.yaml").read_text() == before

    def test_fewer_updates_than_already_done_are_refused(self, trained: Path, toy_corpus: Path) -> None:
        before = (trained / "config.yaml").read_text()
        done = run_dst(*train_options(toy_corpus, trained, "training.max_updates=10"))
        assert_refused(done, "training.max_updates is 10, but", "step-00000012 is further")
        assert (trained / "config.yaml").read_text() == before

    def test_a_folder_without_a_checkpoint_is_refused(self, toy_corpus: Path, tmp_path: Path) -> None:
        done = run_dst(*train_options(toy_corpus, tmp_path / "run"), "--resume", str(tmp_path))
        assert_refused(done, f"{tmp_path} is not a checkpoint")
        assert not (tmp_path / "run").exists()


def assert_refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Check for a user's mistake: exit status 2, one error line with these parts, no traceback."""
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.startswith("dst: error:")]
    assert len(lines) == 1, done.stderr
    for part in parts:
        assert part in lines[0]
    assert "Traceback" not in done.stderr


class TestBadInput:
    @pytest.mark.parametrize(("arguments", "message"), [
        (["train", "bsae"], "unknown preset 'bsae': did you mean 'base'"),
        (["train", "toy", "--set", "model.width=3"], "there is no key 'model.width'"),
        (["train", "toy", "--set", "training.seed=one"], "training.seed = 'one'"),
        (["train", "toy", "--ds", "zero9"], "unknown DeepSpeed fragment 'zero9'"),
        (["train", "toy", "--set", "batch.src_tokens=20"], "src tokens, more than an update may hold"),
        (["train", "toy", "--resume", "nowhere"], "nowhere does not exist; name another"),
    ])  # fmt: skip
    def test_invalid_train_options(self, toy_corpus: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
        done = run_dst(*arguments, "--corpus", str(toy_corpus), "--run", str(tmp_path / "run"))
        assert_refused(done, message)
        assert not (tmp_path / "run").exists()

    def test_a_fragment_that_sets_an_owned_key(self, toy_corpus: Path, tmp_path: Path) -> None:
        path = tmp_path / "mine.json"
        path.write_text('{"gradient_clipping": 1.0}')
        options = ["--corpus", str(toy_corpus), "--run", str(tmp_path / "run"), "--ds", str(path)]
        done = run_dst("train", "toy", *options)
        assert_refused(done, str(path), "'gradient_clipping'", "optimizer.clip_norm")

    @pytest.mark.extended
    def test_a_world_that_does_not_divide_the_micro_batches(self, toy_corpus: Path, tmp_path: Path) -> None:
        done = run_dst(*train_options(toy_corpus, tmp_path / "run", "batch.micro_batches=3"), ranks=2)
        assert done.returncode != 0
        assert done.stderr.count("batch.micro_batches = 3 cannot be split evenly over 2 processes") == 1
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("damage", ["missing", "tokenizer", "shard"])
    def test_a_damaged_corpus(self, toy_corpus: Path, tmp_path: Path, damage: str) -> None:
        corpus = tmp_path / "corpus"
        if damage != "missing":
            shutil.copytree(toy_corpus, corpus)
        if damage == "tokenizer":
            with (corpus / "tokenizer.model").open("ab") as file:
                file.write(b"\x12\x00")
        if damage == "shard":
            shard = next((corpus / "train").glob("*.arrow"))
            content = bytearray(shard.read_bytes())
            content[len(content) // 2] ^= 4
            shard.write_bytes(content)
        done = run_dst(*train_options(corpus, tmp_path / "run"))
        assert_refused(done, str(corpus))
        assert not (tmp_path / "run").exists()

    def test_text_that_cannot_be_translated(self, trained: Path, tmp_path: Path) -> None:
        bad = tmp_path / "bad.en"
        bad.write_bytes(b"fine\n\xff\xfe\n")
        assert_refused(run_dst("translate", str(trained), str(bad)), f"{bad}, line 2")
        assert_refused(run_dst("translate", str(trained), str(tmp_path / "none")), "cannot read")
        assert_refused(run_dst("translate", str(tmp_path), str(bad)), "is not a bundle")
        assert_refused(run_dst("translate", str(bad), str(trained)), "a folder: are they swapped?")

    def test_files_of_different_length(self, trained: Path, tmp_path: Path) -> None:
        src, ref = tmp_path / "a.en", tmp_path / "a.de"
        src.write_text("one\ntwo\n")
        ref.write_text("eins\n")
        done = run_dst("evaluate", str(trained), "--src", str(src), "--ref", str(ref))
        assert_refused(done, f"{src} has 2 lines but {ref} has 1")

    def test_a_checkpoint_kept_only_as_best_is_not_among_the_last(self, trained: Path, tmp_path: Path) -> None:
        run = tmp_path / "run"
        shutil.copytree(trained, run)
        for provenance in run.glob("checkpoints/*/bundle/provenance.json"):
            provenance.write_text(re.sub(r'"(keep|average)_last": \d+', r'"\1_last": 2', provenance.read_text()))
        done = run_dst("average", str(run), "--last", "3", "--out", str(tmp_path / "bundle"))
        assert_refused(done, f"--last 3: {run} has only its newest 2 checkpoints")

    def test_too_many_to_average(self, trained: Path, tmp_path: Path) -> None:
        done = run_dst("average", str(trained), "--last", "9", "--out", str(tmp_path / "bundle"))
        assert_refused(done, f"--last 9: {trained} has only its newest 3 checkpoints")

    @pytest.mark.parametrize("run", ["nowhere", "file", "folder"])
    def test_nothing_to_average(self, tmp_path: Path, run: str) -> None:
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir()
        done = run_dst("average", run, "--out", "bundle", cwd=tmp_path)
        assert_refused(done, f"{run} has no checkpoints: name a folder that `dst train --run` wrote")
        assert not (tmp_path / "bundle").exists()

    def test_an_average_never_replaces_a_file(self, trained: Path, tmp_path: Path) -> None:
        out = tmp_path / "notes.txt"
        out.write_text("keep me")
        done = run_dst("average", str(trained), "--last", "1", "--out", str(out))
        assert_refused(done, f"--out {out}: {out} is a file; name a folder")
        assert out.read_text() == "keep me"
        assert list(tmp_path.iterdir()) == [out]

    def test_a_bundle_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "model").touch()
        assert_refused(run_dst("translate", "model", cwd=tmp_path), "model is not a folder: expected a bundle")

    @pytest.mark.parametrize(("arguments", "parts"), [
        (["ds-config", "base", "--world-size", "0"], ["0 processes cannot train"]),
        (["ds-config", "base", "--world-size", "-1"], ["-1 processes cannot train"]),
        (["ds-config", "base", "--world-size", "two"], ["--world-size", "'two'", "see `dst ds-config --help`"]),
        (["ds-config", "base", "--ds", "zero3"], ["[zero3] state no precision: add one of fp32, bf16, fp16"]),
        (["ds-config", "base", "--ds", "bf16"], ["[bf16] state no ZeRO stage: add one of zero0, zero1"]),
        (["ds-config", "base", "--ds", "zero0", "fp32", "offload_optimizer"], ["which needs stage 1, 2 or 3"]),
        (["ds-config", "base", "--ds", "wrong.json", "bf16"], ["wrong.json: zero_optimization.stage is 7"]),
        (["train", "base"], ["the following arguments are required: --corpus, --run", "`dst train --help`"]),
        ([], ["COMMAND", "`dst --help`"]),
        (["track", "."], [". is not the folder of a tracked run"]),
        (["track", "wrong.json"], ["wrong.json is not the folder of a tracked run"]),
        (["track", "nowhere"], ["nowhere does not exist: name the folder of a run that `dst train` wrote"]),
    ])  # fmt: skip
    def test_invalid_command_lines(self, tmp_path: Path, arguments: list[str], parts: list[str]) -> None:
        (tmp_path / "wrong.json").write_text('{"zero_optimization": {"stage": 7}}')
        done = run_dst(*arguments, cwd=tmp_path)
        assert_refused(done, *parts)
        assert done.stderr.count("\n") == 1
        assert done.stdout == ""


class TestDryRun:
    def test_it_prints_figures_and_writes_nothing(self, toy_corpus: Path, tmp_path: Path) -> None:
        done = run_dst(
            "train", "base", "--corpus", str(toy_corpus), "--run", str(tmp_path / "run"), "--dry-run", "--json"
        )
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout)
        assert figures["estimate"]["pairs"] == 600
        assert figures["estimate"]["updates_per_epoch"] >= 1
        assert set(figures["estimate"]["model_state_gib"]) == {"zero0", "zero1", "zero2", "zero3"}
        assert figures["estimate"]["peak_memory_gib"] == pytest.approx(3.0, abs=1.5)
        assert figures["ds_config"]["zero_optimization"]["stage"] == 1
        assert figures["config"]["model"]["d_model"] == 512
        assert list(tmp_path.iterdir()) == []

    def test_it_prints_text_by_default(self, toy_corpus: Path, tmp_path: Path) -> None:
        done = run_dst("train", "toy", "--corpus", str(toy_corpus), "--run", str(tmp_path / "run"), "--dry-run")
        assert done.returncode == 0, done.stderr
        assert "updates per epoch" in done.stdout
        assert "peak memory        not estimated" in done.stdout, "toy trains in fp32"

    def test_presets_and_ds_config(self) -> None:
        presets = run_dst("presets")
        assert presets.returncode == 0
        assert {"base", "big", "toy", "multi30k"} <= {line.split()[0] for line in presets.stdout.splitlines()}
        composed = run_dst("ds-config", "big", "--ds", "zero3", "fp16", "--world-size", "8")
        assert json.loads(composed.stdout)["zero_optimization"]["stage"] == 3
