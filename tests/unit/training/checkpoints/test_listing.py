"""``dst checkpoints``: what a run has, and whether it is intact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.training.manifests import change_manifest

from dstransformer.cli.program import run
from dstransformer.training.checkpoints import listing
from dstransformer.training.checkpoints.format import Checkpoint, verify_checkpoint
from dstransformer.training.checkpoints.listing import list_checkpoints

STORED = Path(__file__).parents[3] / "data" / "formats" / "1" / "run"


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A run with the stored checkpoint, which is also there under another step."""
    folder = tmp_path / "run"
    shutil.copytree(STORED, folder)
    older = folder / "checkpoints" / "step-00000002"
    shutil.copytree(STORED / "checkpoints" / "step-00000004", older)
    change_manifest(older, lambda content: content["state"].update(step=2))
    return folder


def test_a_table_names_step_score_layout_and_corpus(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoints", str(stored)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "score", "size", "saved", "files", "computed", "with"]
    assert lines[1].split()[:3] == ["2", "bleu_first_4", "0.00"]
    assert lines[2].split()[:4] == ["4", "bleu_first_4", "0.00", "*"], "of equal scores the newer is better"
    assert "1 × ZeRO 1, fp32" in lines[2]
    assert max(map(len, lines[:3])) <= 100
    assert lines[3].startswith("corpus ")
    assert lines[3].endswith("/data/corpus")
    assert lines[4:] == ["* the best score"]


def test_verifying_finds_a_flipped_bit_a_missing_file_and_a_broken_manifest(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["checkpoints", str(stored), "--verify"]) == 0
    assert capsys.readouterr().out.count("intact") == 2
    state = stored / "checkpoints" / "step-00000004" / "state" / "rank-00000.safetensors"
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    assert run(["checkpoints", str(stored)]) == 0, "hashes are compared with --verify only"
    capsys.readouterr()
    assert run(["checkpoints", str(stored), "--verify", "--json"]) == 1
    older, newer = json.loads(capsys.readouterr().out)
    assert older["problem"] is None
    assert newer["problem"] == f"{state} is missing or damaged"
    assert (older["best"], newer["best"]) == (True, False), "a damaged checkpoint is not the best"
    (stored / "checkpoints" / "step-00000004" / "manifest.json").write_text("{")
    assert run(["checkpoints", str(stored)]) == 1
    assert "manifest.json is damaged" in capsys.readouterr().out


def test_a_checkpoint_that_a_training_deletes_meanwhile_is_left_out(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = stored / "checkpoints" / "step-00000002"

    def verify_late(checkpoint: Checkpoint) -> None:
        if older.exists():
            older.rename(stored / "checkpoints" / ".partial-step-00000002-deleted")
        verify_checkpoint(checkpoint)

    monkeypatch.setattr(listing, "verify_checkpoint", verify_late)
    assert [entry.name for entry in list_checkpoints(stored, verify=True)] == ["step-00000004"]


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoints", str(tmp_path)]) == 2
    assert "holds no checkpoints: name the folder that dst train wrote" in capsys.readouterr().err
    assert run(["checkpoints", str(tmp_path / "none")]) == 2
    assert "none does not exist" in capsys.readouterr().err
