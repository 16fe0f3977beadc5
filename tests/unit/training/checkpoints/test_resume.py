"""Which checkpoint a run resumes from, and the errors if it cannot."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dstransformer.config import load_config
from dstransformer.data.plan import Position
from dstransformer.errors import ConfigError, DataError
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder
from dstransformer.training.checkpoints.format import Checkpoint, TrainState
from dstransformer.training.checkpoints.resume import ResumePoint, check_resumed, find_resumed

START = TrainState(0, Position(0, 0), 1, 1, "fp32", "corpus")


def find(run: Path, resume: str) -> None:
    corpus: Any = SimpleNamespace(path=run / "corpus", manifest=SimpleNamespace(build_key="corpus"))
    find_resumed(resume, CheckpointFolder(run / "checkpoints"), corpus)


def test_advice_fits_the_resume_option(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    folder.begin(4)
    path = folder.publish(TrainState(4, Position(0, 4), 1, 1, "fp32", "corpus"), None, {"bundle/lost": ""}).path
    with pytest.raises(ConfigError, match="at step 4"):
        find(tmp_path, "never")
    with pytest.raises(DataError, match=f"^--resume {path}: .*bundle/lost"):
        find(tmp_path, str(path))
    with pytest.raises(DataError, match=r"^--resume \w+: .*does not exist"):
        find(tmp_path, "nowhere")
    with pytest.raises(DataError, match=r"every checkpoint .*--run"):
        find(tmp_path, "auto")
    assert caplog.messages == [f"{path}/bundle/lost is missing or damaged; trying the previous checkpoint"]


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_a_run_whose_checkpoints_are_gone_is_not_replaced(tmp_path: Path, resume: str) -> None:
    (tmp_path / "bundle").mkdir()
    with pytest.raises(ConfigError, match="bundle"):
        find(tmp_path, resume)


def test_a_run_without_checkpoints_starts_over_except_with_never(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    find(tmp_path, "auto")
    with pytest.raises(ConfigError, match="metrics"):
        find(tmp_path, "never")


def test_the_advice_to_set_a_value_back_can_be_pasted() -> None:
    values = [
        "training.mixture=[{epochs: 3, weights: {a: 1}}, {temperature: 5}]",
        "training.augment=[{modifier: typos, probability: 0.1, rate: 0.05}]",
        "batch.stages=[{epochs: 0.5, share: 0.25}]",
        "training.bpe_dropout=0.1",
        "training.int8_weights=true",
    ]
    changed, plain = load_config("toy", values), load_config("toy")
    checkpoint = Checkpoint(Path("checkpoints/step-4"), START, None, None, 4, interim=False)
    for value in values:
        section, _, key = value.partition("=")[0].partition(".")
        old = getattr(plain, section).model_copy(update={key: getattr(getattr(changed, section), key)})
        trained = plain.model_copy(update={section: old})
        with pytest.raises(ConfigError) as refused:
            check_resumed(ResumePoint(checkpoint, trained, {}), plain)
        advice = re.search("set (.*) to resume", str(refused.value))
        assert advice is not None
        (pasted,) = shlex.split(advice[1])
        assert load_config("toy", [pasted]) == trained
