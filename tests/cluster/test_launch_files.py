"""The files in ``launch/`` agree with the presets, and their commands work.

There is no Kubernetes here: the tests check the fields of the manifest that matter, and run the pods' command line as
two processes.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from deepspeed.launcher.runner import fetch_hostfile
from support.processes.forks import REPOSITORY
from support.processes.launching import HANG_SECONDS, free_port, run_command, started, wait_until
from support.training.runs import TINY, latest_state, losses

from dstransformer.config import compose, load_config
from dstransformer.distributed.supervision.rank_log import End
from dstransformer.errors import RUN_AGAIN

LAUNCH = REPOSITORY / "launch"


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    documents = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
    return {document["kind"]: document for document in documents}


@pytest.fixture(scope="module")
def pod(manifests: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifests["Job"]["spec"]["template"]["spec"]
    return spec


def option(arguments: list[str], name: str) -> str:
    (value,) = (argument.removeprefix(f"{name}=") for argument in arguments if argument.startswith(f"{name}="))
    return value


def sbatch_option(name: str) -> str:
    (value,) = re.findall(rf"^#SBATCH --{name}=(\S+)$", (LAUNCH / "slurm.sbatch").read_text(), re.MULTILINE)
    return str(value)


def test_launch_files_agree_on_a_world_size_that_fits_base(manifests: dict[str, Any], pod: dict[str, Any]) -> None:
    arguments = pod["containers"][0]["args"]
    worlds = {
        sum(fetch_hostfile(str(LAUNCH / "hostfile")).values()),
        int(sbatch_option("nodes")) * int(sbatch_option("ntasks-per-node")),
        int(option(arguments, "--nnodes")) * int(option(arguments, "--nproc-per-node")),
    }
    assert len(worlds) == 1
    compose(load_config("base"), worlds.pop())  # refuses a world that does not divide the micro-batches


def test_pods_find_each_other_and_restart(manifests: dict[str, Any], pod: dict[str, Any]) -> None:
    service, job = manifests["Service"], manifests["Job"]
    arguments = pod["containers"][0]["args"]
    name = job["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert option(arguments, "--master-addr") == f"{name}-0.{pod['subdomain']}"
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(option(arguments, "--nnodes"))
    assert pod["restartPolicy"] == "Never", "podFailurePolicy requires it"
    assert job["spec"]["backoffLimit"] > 0
    by_status = {
        tuple(rule["onExitCodes"]["values"]): rule["action"]
        for rule in job["spec"]["podFailurePolicy"]["rules"]
        if "onExitCodes" in rule
    }
    assert by_status == {(RUN_AGAIN,): "Ignore"}


def test_pods_get_gpus_volumes_and_time_for_a_checkpoint(pod: dict[str, Any]) -> None:
    container = pod["containers"][0]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert gpus == int(option(container["args"], "--nproc-per-node"))
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == volumes
    for name in ("--corpus", "--run"):
        path = container["args"][container["args"].index(name) + 1]
        assert any(path.startswith(f"{mount}/") for mount in mounts.values()), path
    patience = next(int(v["value"]) for v in container["env"] if v["name"] == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    (stop,) = (argument for argument in container["args"] if argument.startswith("checkpoint.stop_seconds="))
    assert float(stop.partition("=")[2]) < patience < pod["terminationGracePeriodSeconds"]


def test_pods_that_prepare_data_share_a_folder_and_a_certificate() -> None:
    documents = list(yaml.safe_load_all((LAUNCH / "kubernetes-prep.yaml").read_text()))
    (policy,) = (one for one in documents if one["kind"] == "NetworkPolicy")
    (settings,) = (one for one in documents if one["kind"] == "ConfigMap")
    jobs = [one["spec"]["template"] for one in documents if one["kind"] == "Job"]
    containers = []
    for template in jobs:
        spec = template["spec"]
        assert template["metadata"]["labels"] == policy["spec"]["podSelector"]["matchLabels"]
        assert spec["volumes"] == jobs[0]["spec"]["volumes"]
        containers += spec.get("initContainers", []) + spec["containers"]
    scheduler, build, workers = containers
    assert scheduler["restartPolicy"] == "Always", "a sidecar"
    for container in containers:
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounts) == {volume["name"] for volume in jobs[0]["spec"]["volumes"]}
        assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
        (file,) = (word for word in container["args"] if word.endswith(".json"))
        assert file == f"{mounts['data']}/dst-prep.json"
    assert all(value == "True" or value.startswith("/tls/") for value in settings["data"].values())
    assert build["args"][build["args"].index("--out") + 1].startswith("/data/"), "its work folder is shared"
    for container in (scheduler, workers):  # Dask knows the options
        done = run_command([sys.executable, "-m", *container["command"], *container["args"], "--help"])
        assert done.returncode == 0, done.stderr
        options = {word for word in container["args"] if word.startswith("--")}
        assert options <= set(re.findall(r"--[a-z-]+", done.stdout)), options


@pytest.mark.slow
def test_evicted_pods_ask_to_run_again_and_go_on_with_one_pod_less(
    pod: dict[str, Any], toy_corpus: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    commands = pod_commands(pod, toy_corpus, run, pods=2, updates=100_000)
    with started(commands[0]) as first, started(commands[1]) as second:
        wait_until(lambda: (run / "metrics.jsonl").exists() and len(losses(run)) >= 5, running=[first, second])
        second.terminate()
        assert [one.wait(HANG_SECONDS) for one in (first, second)] == [RUN_AGAIN, RUN_AGAIN]
    stopped = latest_state(run)
    assert stopped["world_size"] == 2
    updates = int(stopped["step"]) + 2
    (command,) = pod_commands(pod, toy_corpus, run, pods=1, updates=updates)
    done = run_command(command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "was computed with 2 ranks, ZeRO stage 2, bf16, this run resumes with 1 rank" in done.stderr
    assert latest_state(run) == latest_state(run) | {"world_size": 1, "step": updates}


def pod_commands(pod: dict[str, Any], corpus: Path, run: Path, *, pods: int, updates: int) -> list[list[str]]:
    """The commands of the pods, for a tiny training in pods of one process on this machine."""
    container = pod["containers"][0]
    replaced = {"--nnodes": str(pods), "--nproc-per-node": "1"}
    replaced |= {"--master-addr": "127.0.0.1", "--master-port": str(free_port())}
    follows = {"train": "toy", "--corpus": str(corpus), "--run": str(run)}
    arguments = list(container["args"])
    for index, argument in enumerate(container["args"]):
        name = argument.partition("=")[0]
        if name in replaced:
            arguments[index] = f"{name}={replaced[name]}"
        if argument in follows:
            arguments[index + 1] = follows[argument]
    arguments += ["--ds", "zero2", "bf16", "--set", *TINY, f"training.max_updates={updates}"]
    program = [str(LAUNCH / "exit-status.sh") if word == "dst-exit-status" else word for word in container["command"]]
    command = [*program, *arguments]
    return [[argument.replace("$(NODE_RANK)", str(rank)) for argument in command] for rank in range(pods)]


def test_the_wrapper_passes_on_signals_and_takes_no_status_of_an_earlier_run(tmp_path: Path) -> None:
    """A launcher of the same kind as torchrun: it ends with 1 after its ranks have ended with 143."""

    def record(status: int, time: float) -> str:
        end = End(status=status, cause="stopped", message='"status": 7', ranks=[], phase="", time=time)
        return f"echo {shlex.quote(end.model_dump_json(indent=2))} > {tmp_path}/end.json"

    run_command(["sh", "-c", record(143, 1.0)])
    wrapper = [str(LAUNCH / "exit-status.sh"), "bash", "-c"]
    train = ["launcher", "train", "--run", str(tmp_path)]
    assert run_command([*wrapper, "exit 2", *train]).returncode == 2, "the file is of an earlier run"
    impatient = {**os.environ, "DST_EXIT_WAIT": "1"}
    unrecorded = run_command([*wrapper, "exit 0", *train], env=impatient)
    assert unrecorded.returncode == 1, "deepspeed ends with 0 after a signal has killed its process on a node"
    assert "has not recorded its end" in unrecorded.stderr
    killed = run_command([*wrapper, f"rm {tmp_path}/end.json; exit 0", *train], env=impatient)
    assert killed.returncode == 1, "a start removes the file"
    assert run_command([*wrapper, f"{record(0, 2.0)}; exit 0", *train]).returncode == 0
    assert run_command([*wrapper, f"{record(143, 3.0)}; exit 0", *train]).returncode == RUN_AGAIN
    assert run_command([*wrapper, "exit 0", *train, "--dry-run"]).returncode == 0
    assert "the command has no --run RUN" in run_command([*wrapper, "exit 0"]).stderr
    stopping = f"trap stop TERM; stop() {{ {record(143, 4.0)}; exit 1; }}; echo ready; while :; do sleep 0.05; done"
    with started([*wrapper, stopping, *train], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.terminate()
        assert program.wait(HANG_SECONDS) == RUN_AGAIN
