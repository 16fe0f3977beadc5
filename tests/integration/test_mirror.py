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
    for moment in range(0, 100, 2):
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
    assert len(moments) >= 10
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

    source, reference = tmp_path / "source.en", tmp_path / "reference.de"
    source.write_text("The dog sleeps.\n")
    reference.write_text("Der Hund schläft.\n")
    evaluated = run_dst("evaluate", ADDRESS, "--src", str(source), "--ref", str(reference), "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    assert str(tmp_path / "cache") in evaluated.stdout
    shutil.rmtree(there / "bundle")
    again = run_dst(
        *options[: options.index("--run")],
        "--run",
        str(tmp_path / "third"),
        *options[options.index("--set") :],
        "--resume",
        ADDRESS,
    )
    assert again.returncode == 0, again.stderr
    assert file_sha256(tmp_path / "third/bundle/model.safetensors") == file_sha256(
        plain_run / "bundle/model.safetensors"
    )


@pytest.mark.usefixtures("s3")
def test_a_stopped_run_translates_with_its_newest_checkpoint_here_and_at_its_address(
    plain_run: Path, tmp_path: Path
) -> None:
    stopped, source = checkpoints(tmp_path / "stopped"), tmp_path / "source.en"
    source.write_text("The dog sleeps.\n")
    shutil.copytree(plain_run / "checkpoints", stopped.path)
    Mirror(ADDRESS).copy(stopped)
    expected = run_dst("translate", str(plain_run / "checkpoints" / "step-00000012"), str(source))
    for run in (str(stopped.run), ADDRESS):
        done = run_dst("translate", run, str(source))
        assert (done.returncode, done.stdout) == (0, expected.stdout)
        assert f"dst: {run} has no final bundle yet: this is its newest checkpoint, step-00000012\n" in done.stderr


def test_what_is_wrong_with_an_address_is_one_line(
    s3: Any, plain_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"cannot read s3://none/x \(.*bucket does not exist\): check the address"):
        Mirror("s3://none/x").prepare(checkpoints(tmp_path / "a"), fetch=True)
    with pytest.raises(UserError, match="what://y is no address that fsspec knows"):
        Mirror("what://y")
    first = checkpoints(tmp_path / "first")
    Mirror(ADDRESS).prepare(first, fetch=True)
    shutil.copytree(plain_run / "checkpoints", first.path)
    Mirror(ADDRESS).copy(first)
    other = checkpoints(tmp_path / "other")
    with pytest.raises(ConfigError, match="holds the checkpoints of another run than"):
        Mirror(ADDRESS).prepare(other, fetch=False)
    shutil.copytree(plain_run / "checkpoints", other.path)
    with pytest.raises(ConfigError, match="holds the checkpoints of another run than"):
        Mirror(ADDRESS).prepare(other, fetch=True)
    shutil.rmtree(first.path)  # its disk is gone: nothing is deleted there
    Mirror(ADDRESS).copy(first)
    assert len(Mirror(ADDRESS).complete()) == 4
    for name in Mirror(ADDRESS).complete():
        RemoteFolder(ADDRESS).write(f"checkpoints/{name}/bundle/model.safetensors", b"damaged")
    with pytest.raises(
        DataError, match=r"no checkpoint of s3://bucket/runs/plain can be fetched: .* is missing or damaged"
    ):
        Mirror(ADDRESS).fetch(checkpoints(tmp_path / "b"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    type(s3).clear_instance_cache()
    with pytest.raises(DataError, match=r"\(Unable to locate credentials\)"):
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
