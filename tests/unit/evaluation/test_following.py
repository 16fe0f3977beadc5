"""Evaluating checkpoints while a training writes and deletes them."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.data.corpora import small_tokenizer

from dstransformer.cli import main
from dstransformer.config import load_config
from dstransformer.errors import DataError, NewerFormatError
from dstransformer.evaluation import following
from dstransformer.evaluation.following import RETRIES, Results, follow
from dstransformer.evaluation.testset import TestSet
from dstransformer.evaluation.validation import validation_sets
from dstransformer.io.files import read_error
from dstransformer.io.products import write_marker
from dstransformer.model import Bundle, open_bundle, save_bundle
from dstransformer.tracking.metrics_log import is_finished

CONFIG = load_config("toy")
FINAL = {"kind": "final_test", "step": 3, "bleu": 1.0}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    write_marker(folder, "run")
    return folder


def write(run: Path, name: str, value: float = 1.0) -> Path:
    """Write a bundle as a training does: it appears complete."""
    place = run / name if name == "bundle" else run / "checkpoints" / name
    aside = place.with_name(f".partial-{name}")
    bundle = aside if name == "bundle" else aside / "bundle"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    save_bundle(bundle, {"w": torch.tensor([value])}, CONFIG, small_tokenizer(),
                {"step": 3, "corpus": str(run / "corpus")})  # fmt: skip
    aside.rename(place)
    return place


def log(run: Path, record: dict[str, object]) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


def follow_run(run: Path, load: Callable[[Bundle], Bundle], **how: Any) -> Iterator[tuple[str, Bundle]]:
    return follow(run, lambda: is_finished(run), load, interval=1.0, **{"say": lambda _: None, **how})


def followed(run: Path, *events: Callable[[], object]) -> list[str]:
    """What is found while these events happen, one at each wait; the run finishes with the last."""
    left = iter(events)
    return [name for name, _ in follow_run(run, keep, wait=lambda _: next(left)())]


def keep(bundle: Bundle) -> Bundle:
    return bundle


def finish(run: Path) -> None:
    write(run, "bundle")
    log(run, FINAL)


def test_checkpoints_are_found_in_order_as_they_appear_and_disappear(run: Path) -> None:
    for name in ("step-00000002", "step-00000001"):
        write(run, name)

    def next_two() -> None:
        shutil.rmtree(run / "checkpoints" / "step-00000001")
        write(run, "step-00000003")
        write(run, "step-00000004")
        (run / "checkpoints" / ".partial-step-00000005").mkdir()

    found = followed(run, lambda: None, next_two, lambda: shutil.rmtree(run / "checkpoints"), lambda: finish(run))
    assert found == ["step-00000001", "step-00000002", "step-00000003", "step-00000004", "bundle"]


def test_a_checkpoint_that_goes_while_others_are_read_is_passed_over(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2, 3):
        write(run, f"step-0000000{number}")
    finish(run)
    found = follow_run(run, keep)
    assert next(found)[0] == "step-00000001"
    shutil.rmtree(run / "checkpoints" / "step-00000002")
    assert [name for name, _ in found] == ["step-00000003", "bundle"]
    assert caplog.messages == []


def test_a_damaged_checkpoint_is_passed_over_with_one_warning(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (write(run, "step-00000001") / "bundle" / "provenance.json").write_text("{")
    write(run, "step-00000002")
    assert followed(run, lambda: None, lambda: finish(run)) == ["step-00000002", "bundle"]
    assert len(caplog.messages) == 1
    assert "provenance.json is damaged" in caplog.messages[0]
    assert caplog.messages[0].endswith("; it is skipped")


def unreadable(name: str, times: int) -> Callable[[Bundle], Bundle]:
    """Loads a bundle, as from a network file system that fails for one checkpoint a number of times."""
    left = [times]

    def load(bundle: Bundle) -> Bundle:
        if name in str(bundle.path) and left[0]:
            left[0] -= 1
            raise read_error(bundle.path, OSError(errno.EIO, "Input/output error"))
        return bundle

    return load


@pytest.mark.parametrize("name", ["step-00000001", "run/bundle"])
def test_a_bundle_that_cannot_be_read_for_a_moment_is_read_later(
    run: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    write(run, "step-00000001")
    finish(run)
    looks: list[float] = []
    found = [one for one, _ in follow_run(run, unreadable(name, 3), wait=looks.append)]
    assert sorted(found) == ["bundle", "step-00000001"]
    assert len(looks) == 3
    assert len(caplog.messages) == 1
    assert "Input/output error; it is tried again at the next looks" in caplog.messages[0]


def test_a_bundle_that_can_never_be_read_does_not_hold_up_the_end(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(run, "step-00000001")
    finish(run)
    looks: list[float] = []
    broken = unreadable("step-00000001", RETRIES + 1)
    assert [name for name, _ in follow_run(run, broken, wait=looks.append)] == ["bundle"]
    assert len(looks) == RETRIES
    assert len(caplog.messages) == 2, "tried again, and skipped"


def test_a_checkpoint_whose_folder_cannot_be_opened_for_a_moment_is_read_later(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, "step-00000001")

    def open_on_a_failing_disk(place: Path) -> Bundle:
        raise read_error(place, OSError(errno.ESTALE, "Stale file handle"))

    def fail() -> None:
        monkeypatch.setattr(following, "open_bundle", open_on_a_failing_disk)
        write(run, "step-00000002")

    def recover() -> None:
        monkeypatch.setattr(following, "open_bundle", open_bundle)

    names = ["step-00000001", "step-00000002", "bundle"]
    assert followed(run, fail, lambda: None, recover, lambda: finish(run)) == names


def test_a_run_without_any_readable_bundle_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finish(run)
    (run / "bundle" / "provenance.json").write_text("{")
    assert main(["evaluate", "--follow", str(run)]) == 2
    assert f"--follow {run}: none of its bundles can be read" in capsys.readouterr().err


def test_a_checkpoint_that_is_written_again_is_found_again(run: Path) -> None:
    write(run, "step-00000001", 1.0)

    def resumed() -> None:
        (run / "checkpoints" / "step-00000001").rename(run / "checkpoints" / ".partial-deleted")
        write(run, "step-00000001", 2.0)

    assert followed(run, resumed, lambda: finish(run)) == ["step-00000001", "step-00000001", "bundle"]


def test_a_run_is_finished_when_its_bundle_is_scored_and_nothing_follows(run: Path) -> None:
    assert not is_finished(run)
    log(run, {"kind": "train", "step": 3})
    write(run, "bundle")
    assert not is_finished(run)
    log(run, FINAL)
    assert is_finished(run)
    log(run, {"kind": "train", "step": 4})
    assert not is_finished(run)


def test_it_says_once_that_it_waits(run: Path) -> None:
    said: list[str] = []
    events = iter([lambda: None, lambda: None, lambda: write(run, "step-00000001"), lambda: finish(run)])
    found = [name for name, _ in follow_run(run, keep, wait=lambda _: next(events)(), say=said.append)]
    assert found == ["step-00000001", "bundle"]
    assert said == [f"waiting for the next checkpoint of {run}; Ctrl-C ends"] * 2


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=str(tmp_path)):
        next(follow_run(tmp_path, keep))


RESULT = {"weights_sha256": "a", "test_set": {"digest": "d"}, "beam_size": 4, "precision": "fp32", "metrics": {}}


def test_results_are_kept_and_known(run: Path) -> None:
    results = Results(run)
    assert not results.has(RESULT)
    results.append("step-00000001", RESULT)
    with (run / "evaluations.jsonl").open("a") as file:
        file.write('{"format_version": 1, "che')  # cut off by a crash
    again = Results(run)
    assert again.has(RESULT)
    for other in ({"weights_sha256": "b"}, {"test_set": {"digest": "e"}}, {"beam_size": 5}, {"precision": "bf16"}):
        assert not again.has(RESULT | other)
    again.append("step-00000002", RESULT | {"weights_sha256": "b"})
    lines = (run / "evaluations.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert list(json.loads(lines[2]))[:2] == ["format_version", "checkpoint"]
    assert Results(run).has(RESULT | {"weights_sha256": "b"})


def test_a_result_without_a_metric_that_is_wanted_is_not_enough(run: Path) -> None:
    results = Results(run)
    results.append("step-00000001", RESULT | {"metrics": {"bleu": 1.0}})
    assert results.has(RESULT, ["bleu"])
    assert not results.has(RESULT, ["comet"])
    results.append("step-00000001", RESULT | {"metrics": {"bleu": 1.0, "comet": 2.0}})
    assert results.has(RESULT, ["comet"])
    sent = RESULT | {"metrics": {"bleu": 1.0}}
    test_set = TestSet("held", ("a",), ("b",), "held.en", "held.de")
    of_set = [
        {**RESULT, "test_set": test_set.to_json(), "metrics": {"bleu": 1.0, **more}} for more in ({}, {"ter": 2.0})
    ]
    for one in of_set:
        results.append("step-00000002", one)
    assert [one["metrics"] for one in results.missing_in([sent, of_set[0]], [test_set])] == [of_set[1]["metrics"]]


def test_results_that_mlflow_has_not_are_found(run: Path) -> None:
    test_set = TestSet("held", ("a",), ("b",), "held.en", "held.de")
    results = Results(run)
    told = [RESULT | {"weights_sha256": name, "test_set": test_set.to_json()} for name in "abc"]
    for result in told:
        results.append("step-00000001", result)
    results.append("step-00000001", RESULT)  # of another test set
    missing = Results(run).missing_in(told[:1], [test_set])
    assert missing == [{"format_version": 1, **result} for result in told[1:]]


def test_results_of_a_newer_format_are_refused(run: Path) -> None:
    (run / "evaluations.jsonl").write_text('{"format_version": 2}\n')
    with pytest.raises(NewerFormatError, match=r"evaluations\.jsonl .*2"):
        Results(run)


def test_a_corpus_that_is_gone_is_named(run: Path) -> None:
    bundle = open_bundle(write(run, "bundle"))
    with pytest.raises(DataError, match="--src"):
        validation_sets(bundle)
