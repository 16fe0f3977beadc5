"""The distillation workflow with its SLURM profile on a real cluster: each step is a job."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from support.clusters.slurm import Slurm, slurm_cluster
from support.processes.launching import run_command
from support.training.runs import TINY

from data_prep.cli import main as dst_prep

pytest.importorskip("snakemake_executor_plugin_slurm", reason="needs pip install -c constraints.txt -e '.[distill]'")

#: The nodes of the test have one core and 1000 MB; the cluster keeps no accounts, so that sacct knows nothing.
SMALL = [
    "--cores", "1", "--default-resources", "mem_mb=400", "runtime=10", "--slurm-no-account",
    "--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5",
]  # fmt: skip
STEPS = ("teacher", "translate", "corpus", "student")


def with_configuration(cluster: Slurm, folder: Path) -> dict[str, str]:
    """The environment of a cluster with an ``srun`` that finds its configuration.

    The plugin starts ``srun`` without SLURM_CONF, since clusters have their configuration in ``/etc/slurm``.
    """
    folder.mkdir()
    environment, srun = cluster.environment, folder / "srun"
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={environment["SLURM_CONF"]} exec {shutil.which("srun")} "$@"\n')
    srun.chmod(0o755)
    return environment | {"PATH": f"{folder}{os.pathsep}{environment['PATH']}"}


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.extended
def test_each_step_is_a_job_of_slurm(toy_corpus: Path, tmp_path: Path) -> None:
    for name in ("validation", "test"):
        files = ["--src", str(tmp_path / f"{name}.en"), "--tgt", str(tmp_path / f"{name}.de")]
        assert dst_prep(["text", str(toy_corpus), "--split", name, *files]) == 0
    values = [value for value in TINY if not value.startswith("tracking.")]
    values += ["training.max_updates=4", "batch.micro_batches=1"]
    content = {
        "out": "out",
        "src_lang": "en",
        "tgt_lang": "de",
        "teacher": {"preset": "toy", "corpus": str(toy_corpus), "set": values},
        "text": {"mono": "test.en"},
        "translate": {"beam": 1, "n_best": 1, "options": ["--min-tokens", "4"]},
        "corpus": {"valid_src": "validation.en", "valid_tgt": "validation.de"},
        "student": {"preset": "toy", "set": values},
        "test": {"toy": {"src": "validation.en", "ref": "validation.de"}},
    }
    config = tmp_path / "mine.yaml"
    config.write_text(yaml.safe_dump(content), encoding="utf-8")
    command = [sys.executable, "-m", "dstransformer", "distill", str(config), "--profile", "slurm"]
    command += ["--until", "student", *SMALL]
    with slurm_cluster(tmp_path / "slurm") as cluster:
        done = run_command(command, env=with_configuration(cluster, tmp_path / "bin"), cwd=tmp_path)
        jobs = cluster.run("scontrol", "show", "jobs", "--oneliner")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert jobs.count("JobState=COMPLETED") == len(STEPS)
    records = [json.loads(path.read_text()) for path in (tmp_path / "out" / "records").glob("*.json")]
    assert {(record["step"], record["cores"]) for record in records} == {
        ("teacher", 1), ("translate_mono", 1), ("corpus", 1), ("student", 1),
    }  # fmt: skip
    assert (tmp_path / "out" / "student" / "bundle" / "model.safetensors").exists()
