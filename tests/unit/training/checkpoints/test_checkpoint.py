from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from support.training.manifests import change_manifest

from dstransformer.data.plan import Position
from dstransformer.errors import DataError, NewerFormatError, StorageError
from dstransformer.evaluation import Score
from dstransformer.io.files import file_sha256
from dstransformer.io.products import write_marker
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder, periodic, select_kept
from dstransformer.training.checkpoints.format import (
    Checkpoint,
    Cost,
    EarlyStoppingState,
    RecoveryState,
    TrainState,
    read_checkpoint,
    verify_checkpoint,
)


def state(step: int) -> TrainState:
    return TrainState(step, Position(0, step), 1, 1, "fp32", "the corpus")


def write(folder: CheckpointFolder, step: int, score: float | None = None, *, interim: bool = False) -> Checkpoint:
    partial = folder.begin(step)
    (partial / "bundle").mkdir()
    weights = partial / "bundle" / "weights"
    weights.write_text(f"weights of {step}")
    return folder.publish(
        state(step),
        None if score is None else Score("bleu", score),
        {"bundle/weights": file_sha256(weights)},
        interim=interim,
    )


def steps(folder: CheckpointFolder) -> list[int]:
    return [checkpoint.state.step for checkpoint in folder.checkpoints()]


def test_a_checkpoint_is_visible_only_when_it_is_complete(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", keep_last=2)
    assert folder.latest() is None
    partial = folder.begin(100)
    (partial / "weights").write_text("half")
    assert folder.checkpoints() == []
    assert folder.latest() is None
    write(folder, 100)
    assert steps(folder) == [100]
    assert (folder.path / "latest").read_text() == "step-00000100\n"
    assert not list(folder.path.glob(".*"))


def test_a_copy_under_another_step_is_refused(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=2)
    copy = tmp_path / "step-00000009"
    shutil.copytree(write(folder, 5).path, copy)
    with pytest.raises(DataError, match=r"step-00000009 .*step-00000005"):
        read_checkpoint(copy)
    assert steps(folder) == [5]
    shutil.copytree(copy, tmp_path / "kept")
    assert read_checkpoint(tmp_path / "kept").state.step == 5
    with pytest.raises(DataError, match=r"manifest\.json is not a checkpoint"):
        read_checkpoint(copy / "manifest.json")


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=2, keep_best=1)
    for step, score in ((1, 10.0), (2, 30.0), (3, 20.0), (4, None), (5, 25.0)):
        write(folder, step, score)
    assert steps(folder) == [2, 4, 5]
    latest = folder.latest()
    assert latest is not None
    assert latest.state == state(5)
    assert latest.score == 25.0


def test_what_a_stop_request_left_is_kept_while_it_is_the_newest_and_takes_no_place(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=2)
    for step in (4, 8, 12):
        write(folder, step)
    stopped = write(folder, 13, interim=True)
    assert stopped.interim
    assert steps(folder) == [8, 12, 13]
    assert folder.latest_finite(None) == read_checkpoint(tmp_path / "step-00000012"), "as without the request"
    assert folder.latest_finite(12) == read_checkpoint(tmp_path / "step-00000008")
    amended = folder.amend(stopped, replace(state(13), cost=Cost(flops=1)), None, interim=True)
    assert amended.interim
    write(folder, 14, interim=True)
    assert steps(folder) == [8, 12, 14]
    write(folder, 16)
    assert steps(folder) == [12, 16]
    assert [c.state.step for c in periodic([stopped])] == [13], "there is nothing else to average"


def test_a_flipped_bit_of_the_manifest_is_found(tmp_path: Path) -> None:
    before = write(CheckpointFolder(tmp_path), 7)
    manifest = before.path / "manifest.json"
    sound = manifest.read_bytes()
    found = 0
    for place in range(len(sound)):
        manifest.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        try:
            after = read_checkpoint(before.path)
        except DataError:
            found += 1
        else:  # a blank between the values, or the name of the hash
            verify_checkpoint(after)
            assert after == before
    assert found > 0.5 * len(sound)


def test_early_stopping_and_recovery_are_stored(tmp_path: Path) -> None:
    partial = CheckpointFolder(tmp_path).begin(5)
    (partial / "weights").touch()
    stored = replace(
        state(5), early_stopping=EarlyStoppingState("bleu", 12.5, 2, "tok:zh"), recovery=RecoveryState(3, 1, 4)
    )
    checkpoint = CheckpointFolder(tmp_path).publish(stored, None, {})
    assert read_checkpoint(checkpoint.path).state == stored


def test_the_cost_is_stored_exactly(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.begin(5)
    spent = Cost(flops=10**18 + 1, device_seconds=12.5)
    checkpoint = folder.publish(replace(state(5), cost=spent), None, {})
    assert read_checkpoint(checkpoint.path).state.cost == spent
    assert checkpoint.state == state(5), "comparisons ignore the cost"


def test_the_newer_of_equal_scores_is_kept() -> None:
    checkpoints = [Checkpoint(Path(str(step)), state(step), 5.0) for step in (1, 2, 3, 4)]
    assert [c.state.step for c in select_kept(checkpoints, 1, 2)] == [3, 4]


def test_a_rewritten_step_replaces_the_old_one(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=2)
    first = write(folder, 1)
    again = write(folder, 1, 9.0)
    assert steps(folder) == [1]
    assert again.score == 9.0
    assert first.path == again.path


def test_every_file_is_checked_against_its_hash(tmp_path: Path) -> None:
    checkpoint = write(CheckpointFolder(tmp_path), 7)
    verify_checkpoint(checkpoint)
    weights = checkpoint.path / "bundle" / "weights"
    weights.write_text("weights of 8")
    with pytest.raises(DataError, match="bundle/weights"):
        verify_checkpoint(checkpoint)
    weights.unlink()
    with pytest.raises(DataError, match="bundle/weights"):
        verify_checkpoint(checkpoint)


def test_resuming_from_an_earlier_checkpoint_deletes_the_later_ones(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=3, keep_best=1)
    for step, score in ((1, 9.0), (2, 5.0), (3, 6.0)):
        write(folder, step, score)
    folder.delete_after(1)
    assert steps(folder) == [1]
    write(folder, 2)
    latest = folder.latest()
    assert latest is not None
    assert latest.state.step == 2
    assert steps(folder) == [1, 2]


def test_without_a_valid_latest_file_the_newest_checkpoint_is_used(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=3)
    write(folder, 1)
    write(folder, 2)
    for lost in ("step-00000009\n", None):
        if lost is None:
            (tmp_path / "latest").unlink()
        else:
            (tmp_path / "latest").write_text(lost)
        latest = folder.latest()
        assert latest is not None
        assert latest.state.step == 2


def test_damaged_checkpoints_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=4)
    for step in (1, 2, 3, 4):
        write(folder, step)
    folder.delete_after(3)
    (tmp_path / "step-00000003" / "manifest.json").write_text("{")
    (tmp_path / "step-00000002" / "bundle" / "weights").write_text("other weights")
    sound = folder.latest_valid()
    assert sound is not None
    assert sound.state.step == 1
    assert [record.message.partition(" ")[0] for record in caplog.records] == [
        str(tmp_path / "step-00000003" / "manifest.json"),
        str(tmp_path / "step-00000002" / "bundle" / "weights"),
    ]
    folder.delete_after(1)
    assert [path.name for path in tmp_path.glob("*step-*")] == ["step-00000001"]
    (tmp_path / "step-00000001" / "bundle" / "weights").unlink()
    with pytest.raises(DataError, match="every checkpoint"):
        folder.latest_valid()


@pytest.mark.parametrize("name", ["manifest.json", "bundle/weights"])
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_a_checkpoint_that_cannot_be_read_now_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=3)
    write(folder, 1)
    newest = write(folder, 2)
    opened, failing = Path.open, newest.path / name

    def open_file(path: Path, *values: Any, **named: Any) -> IO[Any]:
        if path == failing:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *values, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_file)
        for find in (folder.latest_valid, lambda: folder.latest_finite(None)):
            with pytest.raises(StorageError, match=f"{failing}: {os.strerror(number)}"):
                find()
        write(folder, 3)  # nothing is deleted
    assert steps(folder) == [1, 2, 3]
    folder.delete_after(2)
    assert folder.latest_valid() == newest


def test_pruning_leaves_a_damaged_checkpoint_alone(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=1)
    write(folder, 1)
    (tmp_path / "step-00000001" / "manifest.json").write_text("{")
    (tmp_path / "step-00000001-mine").mkdir()
    write(folder, 2)
    write(folder, 3)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-00000001",
        "step-00000001-mine",
        "step-00000003",
    ]


def test_a_newer_format_is_not_reported_as_damage(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", keep_last=9)
    write(folder, 1)
    newest = write(folder, 2)
    (newest.path / "dst.json").write_text('{"kind": "checkpoint", "format": 99}')
    with pytest.raises(NewerFormatError, match=r"dst\.json has format version 99"):
        folder.latest_valid()


@pytest.mark.parametrize(("change", "key"), [
    ({"recovery": {"rollbacks": "many"}}, "recovery.rollbacks"), ({"cost": {"flops": 1, "coins": 2}}, "coins"),
    ({"cost": []}, "cost"), ({"cost": 3}, "cost"), ({"interim": 3}, "interim"), ({"files": {"a": 1}}, "files.a"),
    ({"state": "text"}, "wrong type"), ({"state": []}, "wrong type"), ({"state": None}, "wrong type"),
])  # fmt: skip
def test_a_damaged_value_is_named_as_in_the_file(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    checkpoint = write(CheckpointFolder(tmp_path), 7)
    change_manifest(checkpoint.path, lambda content: content.update(change))
    with pytest.raises(DataError, match=rf"manifest\.json .*{key}"):
        read_checkpoint(checkpoint.path)


@pytest.mark.parametrize("manifest", [None, "{", "{}", '{"state": {"step": 1}, "score": null}'])
def test_folders_without_a_valid_manifest_are_refused(tmp_path: Path, manifest: str | None) -> None:
    write_marker(tmp_path, "checkpoint")
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(DataError, match=str(tmp_path)):
        read_checkpoint(tmp_path)
