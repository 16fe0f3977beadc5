"""What a dry run checks, and what it warns of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.data.corpora import write_corpus
from support.training.runs import TINY

from dstransformer.cli import main
from dstransformer.config import load_config
from dstransformer.data import Corpus
from dstransformer.data.plan import Position
from dstransformer.errors import ConfigError, DstError, UserError
from dstransformer.io.files import file_sha256
from dstransformer.io.products import write_marker
from dstransformer.model import save_bundle
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder
from dstransformer.training.checkpoints.format import TrainState
from dstransformer.training.estimate import DryRun, dry_run
from dstransformer.training.experiment import TrainRequest, resolve_alone
from dstransformer.training.run import train

ROWS = [([5, 6, 7], [8, 9])] * 40


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "DS_ACCELERATOR", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a checkpoint at update 4."""
    corpus = Corpus.open(write_corpus(tmp_path / "corpus", ROWS), verify=False)
    (tmp_path / "run").mkdir()
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
    bundle = folder.begin(4) / "bundle"
    save_bundle(bundle, {"weight": torch.ones(1)}, load_config("toy", TINY), corpus.tokenizer, {})
    write_marker(tmp_path / "run", "run")
    state = TrainState(4, Position(0, 4), 1, 1, "fp32", corpus.manifest.build_key)
    folder.publish(state, None, {f"bundle/{path.name}": file_sha256(path) for path in bundle.iterdir()})
    return tmp_path / "run"


def plan(run: Path, *changes: str, to: str = "run", fragment: str = "zero1", **more: Any) -> DryRun:
    overrides, fragments = [*TINY, *changes], [fragment, "fp32"]
    request = TrainRequest("toy", run.parent / "corpus", run.parent / to, overrides, fragments, **more)
    return dry_run(resolve_alone(request))


@pytest.mark.parametrize(("changes", "more", "named"), [
    ([], {"resume": "never"}, "step 4"),
    ([], {"resume": ""}, "--resume"),
    ([], {"register": "en-de"}, r"--register en-de .*tracking\.enabled"),
    ([], {"to": "new", "fragment": "own.json"}, "reduce_bukcet_size"),
    (["loss.guided_alignment=0.1"], {"to": "new"}, r"guided_alignment = 0\.1"),
    (["model.d_model=64"], {}, "set model.d_model=32 to resume"),
    (["training.seed=77"], {}, "training.seed is 77"),
    (["training.max_updates=3"], {}, "training.max_updates is 3"),
    (["batch.micro_batches=2"], {}, r"batch\.micro_batches=4"),
])  # fmt: skip
def test_a_dry_run_refuses_what_the_run_would(
    run: Path, changes: list[str], more: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    own = {"zero_optimization": {"stage": 1, "reduce_bukcet_size": 4}}
    (run.parent / "own.json").write_text(json.dumps(own))
    with pytest.raises(UserError, match=named):
        plan(run, *changes, **more)
    assert not (run.parent / "new").exists()


def test_a_dry_run_that_could_resume_changes_nothing(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = sorted(run.parent.rglob("*"))
    assert plan(run, "training.log_every=2").experiment.config.model.d_model == 32
    assert caplog.messages == ["from update 5 on training.log_every is 2; it was 1"]
    assert sorted(run.parent.rglob("*")) == before


def test_an_unsupported_accelerator_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "tpu")
    with pytest.raises(DstError, match="DS_ACCELERATOR is 'tpu'"):
        plan(run)


def test_a_process_that_trains_alone_is_warned(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert any("SLURM_NTASKS=4, but WORLD_SIZE is not set" in warning for warning in plan(run).warnings)


def test_auto_keeps_the_micro_batches_of_the_checkpoint(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    kept = plan(run, "batch.micro_batches=auto")
    assert kept.experiment.config.batch.micro_batches == kept.to_json()["config"]["batch"]["micro_batches"] == 4
    assert kept.estimate.accumulation_steps == 2
    assert kept.to_json()["micro_batches_from"] == "checkpoint"
    monkeypatch.setenv("WORLD_SIZE", "3")
    tried = plan(run, "batch.micro_batches=auto")
    assert tried.experiment.config.batch.micro_batches == 3
    assert tried.to_json()["micro_batches_from"] == "trial"
    assert caplog.messages == [], "the run says what it finds"


def test_auto_precision_keeps_the_precision_of_the_checkpoint(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def plan_auto(folder: Path, resume: str = "auto") -> DryRun:
        settings = [*TINY, "batch.micro_batches=4"]
        request = TrainRequest("toy", run.parent / "corpus", folder, settings, ["zero1", "auto_precision"], resume)
        return dry_run(resolve_alone(request))

    monkeypatch.setattr("dstransformer.training.facts.processor_flags", lambda: frozenset({"amx_bf16"}))
    kept = plan_auto(run)
    assert kept.experiment.precision == kept.to_json()["precision"] == "fp32"
    assert kept.experiment.config.deepspeed == ["zero1", "fp32"]
    assert kept.to_json()["precision_from"] == "as its checkpoint has; a new run would take bf16 here (auto_precision)"
    assert plan_auto(run, resume=str(run / "checkpoints" / "step-00000004")).experiment.precision == "fp32"
    assert plan_auto(run.parent / "new").experiment.precision == "bf16"
    assert caplog.messages == [], "nothing changes"


def test_a_dry_run_resolves_auto_precision_and_warns_of_emulation(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dstransformer.training.facts.processor_flags", lambda: frozenset({"avx2"}))
    command = ["train", "base", "--corpus", str(run.parent / "corpus"), "--run", str(run.parent / "new"), "--dry-run"]

    def printed(*more: str) -> str:
        assert main([*command, *more]) == 0
        return capsys.readouterr().out

    slow = "bf16 is emulated"
    assert slow in printed()
    auto = printed("--ds", "zero1", "auto_precision")
    assert "precision                    fp32   as not every device here has instructions for bf16" in auto
    assert slow not in auto


def test_the_stages_of_the_batch_size_are_shown_and_a_resumed_run_keeps_them(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "toy", "--corpus", str(run.parent / "corpus"), "--run", str(run), "--dry-run", "--set", *TINY]
    staged = "batch.stages=[{epochs: 1, share: 0.5}]"
    assert main([*command, staged]) == 2
    assert "set 'batch.stages=[]' to resume" in capsys.readouterr().err
    command[5] = str(run.parent / "new")
    assert main([*command, staged, "batch.src_tokens=80"]) == 0
    printed = capsys.readouterr().out
    assert "an update may hold 50% of the tokens for 1 epoch (about 4 updates), then all" in printed
    assert "updates per epoch               2   total epochs" in printed


@pytest.mark.parametrize(("code", "choice", "warning"), [
    ("xx", "auto", "'xx' is not a language code: BLEU takes"),
    ("ja", "bpe", "validation.tokenize=bpe does not fit ja: validation.tokenize=auto takes ja-mecab"),
])  # fmt: skip
def test_a_tokenizer_of_bleu_that_may_be_wrong_is_warned_of(run: Path, code: str, choice: str, warning: str) -> None:
    manifest = run.parent / "corpus" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "tgt_lang": code}))
    mine = run.parent / "mine.yaml"
    mine.write_text(f"extends: toy\nvalidation: {{tokenize: {choice}}}\n")
    request = TrainRequest(str(mine), run.parent / "corpus", run.parent / "new", TINY, ["zero1", "fp32"])
    assert [line for line in dry_run(resolve_alone(request)).warnings if line.startswith(warning)]


def test_a_request_takes_the_names_of_folders(run: Path) -> None:
    names: Any = {"corpus": str(run.parent / "corpus"), "run": str(run), "init": str(run), "resume": run / "checkpoint"}
    request = TrainRequest("toy", **names)
    assert (request.corpus, request.run, request.init) == (run.parent / "corpus", run, run)
    assert request.resume == str(run / "checkpoint")


def test_what_is_no_request_is_refused(run: Path) -> None:
    wrong: Any = ["a=1"]
    with pytest.raises(ConfigError, match=r"tags is \['a=1'\]"):
        TrainRequest("toy", run.parent / "corpus", run, tags=wrong)
    for request in ("toy", {"preset": "toy"}):
        given: Any = request
        with pytest.raises(ConfigError, match="is not a request: give TrainRequest"):
            train(given)
