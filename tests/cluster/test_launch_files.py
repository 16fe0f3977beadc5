"""The files in ``launch/`` agree with the presets, and their commands work.

There is no Kubernetes here: the tests check the fields of the manifest that matter, and run the pods' command line as
two processes.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from deepspeed.launcher.runner import fetch_hostfile
from support.launching import REPOSITORY, free_port, run_command
from support.runs import TINY, latest_state, losses

from dstransformer.config import compose, load_config

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
    assert patience < pod["terminationGracePeriodSeconds"]


@pytest.mark.slow
def test_the_pod_command_trains(pod: dict[str, Any], toy_corpus: Path, tmp_path: Path) -> None:
    container, run = pod["containers"][0], tmp_path / "run"
    replaced = {"--nproc-per-node": "1", "--master-addr": "127.0.0.1", "--master-port": str(free_port())}
    follows = {"train": "toy", "--corpus": str(toy_corpus), "--run": str(run)}
    arguments = list(container["args"])
    for index, argument in enumerate(container["args"]):
        name = argument.partition("=")[0]
        if name in replaced:
            arguments[index] = f"{name}={replaced[name]}"
        if argument in follows:
            arguments[index + 1] = follows[argument]
    arguments += ["--ds", "zero2", "bf16", "--set", *TINY, "training.max_updates=5"]

    command = [*container["command"], *arguments]
    pods = [[argument.replace("$(NODE_RANK)", str(rank)) for argument in command] for rank in range(2)]
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(run_command, pods))
    assert [pod.returncode for pod in done] == [0, 0], [pod.stderr[-3000:] for pod in done]
    assert len(losses(run)) == 5
    assert latest_state(run)["world_size"] == 2
