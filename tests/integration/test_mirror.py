"""Checkpoints mirrored to an S3 server (moto): a run whose disk is gone goes on elsewhere."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes.forks import environment
from support.processes.launching import finish, forked, run_dst, wait_until
from support.s3 import s3_server
from support.training.runs import latest_state, plain_options, records

from dstransformer.errors import ConfigError, DataError, UserError
from dstransformer.io.files import file_sha256
from dstransformer.io.remote import RemoteFolder
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder
from dstransformer.training.checkpoints.mirror import Mirror

ADDRESS = "s3://bucket/runs/plain"
MIRROR = f"checkpoint.mirror={ADDRESS}"

#: Copies a run as a training does, and is killed before the operation on the server that has this number.
COPY = """
import os, signal, sys
from pathlib import Path
from dstransformer.io.remote import RemoteFolder
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder
from dstransformer.training.checkpoints.mirror import Mirror

address, run, left = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])

def counted(operation):
    def call(*given):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return operation(*given)
    return call

for name in ("upload", "write", "delete"):
    setattr(RemoteFolder, name, counted(getattr(RemoteFolder, name)))
Mirror(address).copy(CheckpointFolder(run / "checkpoints"))
"""


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with s3_server(tmp_path, monkeypatch) as files:
        yield files


def checkpoints(run: Path) -> CheckpointFolder:
    run.mkdir(exist_ok=True)
    return CheckpointFolder(run / "checkpoints")


def copied(plain_run: Path, run: Path) -> CheckpointFolder:
    """A run with the checkpoints of the plain run, which are at the address too."""
    folder = checkpoints(run)
    Mirror(ADDRESS).prepare(folder, fetch=True)
    shutil.copytree(plain_run / "checkpoints", folder.path)
    Mirror(ADDRESS).copy(folder)
    return folder


@pytest.mark.slow
def test_a_copy_killed_at_any_moment_leaves_a_checkpoint_to_go_on_from(
    s3: Any, plain_copy: Path, tmp_path: Path
) -> None:
    (tmp_path / "copy.py").write_text(COPY)
    kept = plain_copy / "checkpoints"
    newest = sorted(kept.glob("step-*"))
    later = [shutil.move(folder, tmp_path / folder.name) for folder in newest[1:]]
    Mirror(ADDRESS).copy(checkpoints(plain_copy))
    for folder in later:
        shutil.move(folder, kept / folder.name)
    shutil.rmtree(newest[0])  # as a run keeps the newest few
    moments = []
    for moment in range(0, 100, 8):
        address = f"{ADDRESS}-{moment}"
        s3.copy(ADDRESS.removeprefix("s3://"), address.removeprefix("s3://"), recursive=True)
        with forked([str(tmp_path / "copy.py"), address, str(plain_copy), str(moment)]) as process:
            _, errors = finish(process)
        elsewhere = checkpoints(tmp_path / f"elsewhere-{moment}")
        found = Mirror(address).fetch(elsewhere)
        assert found is not None
        assert found.path.name in {folder.name for folder in newest}
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors
        moments.append(found.path.name)
    assert len(moments) >= 3
    assert moments == sorted(moments)
    assert found.path.name == newest[-1].name
    names = [folder.name for folder in newest[1:]]
    assert Mirror(address).complete() == names
    assert sorted(Path(name).name for name in s3.ls(f"{address}/checkpoints")) == names
    for path in newest[-1].rglob("*"):
        if path.is_file():
            assert file_sha256(elsewhere.path / path.relative_to(kept)) == file_sha256(path)


@pytest.mark.slow
def test_a_run_whose_disk_is_gone_goes_on_elsewhere_bit_for_bit(
    s3: Any, toy_corpus: Path, plain_run: Path, tmp_path: Path
) -> None:
    options = [*plain_options(toy_corpus, tmp_path / "here"), MIRROR, "tracking.enabled=false"]
    with forked(["-m", "dstransformer", *options], environment()) as process:
        wait_until(
            lambda: bool(s3.exists("bucket/runs/plain/checkpoints/step-00000006/manifest.json")), running=[process]
        )
        process.kill()
        finish(process)
    shutil.rmtree(tmp_path / "here", ignore_errors=True)
    options[options.index(str(tmp_path / "here"))] = str(tmp_path / "there")
    done = run_dst(*options)
    assert done.returncode == 0, done.stderr
    assert f"fetched the checkpoints of {ADDRESS}, the newest step-000000" in done.stderr
    there = tmp_path / "there"
    assert latest_state(there)["step"] == 12
    for name in ("model.safetensors", "tokenizer.model"):
        assert file_sha256(there / "bundle" / name) == file_sha256(plain_run / "bundle" / name)
    assert [line["step"] for line in records(there, "train")] == [line["step"] for line in records(plain_run, "train")]
    assert Mirror(ADDRESS).complete() == [path.name for path in sorted((there / "checkpoints").glob("step-*"))]


@pytest.mark.slow
@pytest.mark.usefixtures("s3")
def test_an_address_stands_for_its_run(toy_corpus: Path, plain_run: Path, tmp_path: Path) -> None:
    """For commands that take a bundle, and for a run that resumes."""
    stopped, source = copied(plain_run, tmp_path / "stopped"), tmp_path / "source.en"
    source.write_text("The dog sleeps.\n")
    expected = run_dst("translate", str(plain_run / "checkpoints" / "step-00000012"), str(source))
    for run in (str(stopped.run), ADDRESS):
        done = run_dst("translate", run, str(source))
        assert (done.returncode, done.stdout) == (0, expected.stdout)
        assert f"dst: {run} has no final bundle yet: this is its newest checkpoint, step-00000012\n" in done.stderr
    resumed = tmp_path / "resumed"
    done = run_dst(*plain_options(toy_corpus, resumed, "tracking.enabled=false"), "--resume", ADDRESS)
    assert done.returncode == 0, done.stderr
    weights = [file_sha256(run / "bundle" / "model.safetensors") for run in (resumed, plain_run)]
    assert weights[0] == weights[1]


@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize(("address", "error", "part"), [
    ("s3://none/x", DataError, r"s3://none/x .*bucket does not exist"), ("what://y", UserError, "what://y"),
])  # fmt: skip
def test_an_address_where_nothing_is_is_named(address: str, error: type[Exception], part: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=part):
        Mirror(address).prepare(checkpoints(tmp_path / "run"), fetch=True)


@pytest.mark.usefixtures("s3")
def test_checkpoints_of_another_run_are_left_alone(plain_run: Path, tmp_path: Path) -> None:
    copied(plain_run, tmp_path / "first")
    other = checkpoints(tmp_path / "other")
    with pytest.raises(ConfigError, match=ADDRESS):
        Mirror(ADDRESS).prepare(other, fetch=False)
    shutil.copytree(plain_run / "checkpoints", other.path)
    with pytest.raises(ConfigError, match=ADDRESS):
        Mirror(ADDRESS).prepare(other, fetch=True)


@pytest.mark.usefixtures("s3")
def test_nothing_is_deleted_for_a_run_whose_disk_is_gone(plain_run: Path, tmp_path: Path) -> None:
    folder = copied(plain_run, tmp_path / "run")
    shutil.rmtree(folder.path)
    Mirror(ADDRESS).copy(folder)
    assert len(Mirror(ADDRESS).complete()) == 4


@pytest.mark.usefixtures("s3")
def test_damaged_copies_are_not_fetched(plain_run: Path, tmp_path: Path) -> None:
    copied(plain_run, tmp_path / "run")
    for name in Mirror(ADDRESS).complete():
        RemoteFolder(ADDRESS).write(f"checkpoints/{name}/bundle/model.safetensors", b"damaged")
    with pytest.raises(DataError, match=ADDRESS):
        Mirror(ADDRESS).fetch(checkpoints(tmp_path / "elsewhere"))


def test_missing_credentials_are_named(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    type(s3).clear_instance_cache()
    with pytest.raises(DataError, match="credentials"):
        Mirror(ADDRESS).complete()


@pytest.mark.parametrize("name", ["a[1]", "a*", "a%41 ü'&#;"])
def test_deleting_takes_an_address_for_no_pattern(s3: Any, tmp_path: Path, name: str) -> None:
    for root in ("s3://bucket/runs", "memory://runs", f"file://{tmp_path}/runs"):
        mirror, other = RemoteFolder(f"{root}/{name}"), RemoteFolder(f"{root}/a1")
        for folder in (mirror, other):
            folder.write("step[1]/x", b"1")
        other.write("step1/x", b"1")
        other.delete("step[1]")
        mirror.delete("step[1]")
        assert (mirror.names(), other.names()) == ([], ["step1"])
        assert other.read("step1/x") == b"1"
