"""What rank 0 must know of each process and its machine to make the plan of a run."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import torch

from dstransformer import __version__
from dstransformer.config import Precision
from dstransformer.distributed.hardware import usable_cores
from dstransformer.errors import ConfigError
from dstransformer.evaluation.task import build_task
from dstransformer.io.products import read_probe
from dstransformer.model import DTYPES
from dstransformer.model.ops import (
    check_backend,
    compiler_name,
    kernels_fingerprint,
    processor_flags,
    processor_name,
)
from dstransformer.training.experiment import Experiment

ALL: frozenset[Precision] = frozenset(get_args(Precision))

#: The instruction sets, by Linux's names for x86 and ARM, of which a CPU needs one.
_INSTRUCTIONS: dict[Precision, set[str]] = {
    "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Facts:
    """What a rank tells rank 0. Of a device for which a dry run plans, only the first six are known.

    Attributes:
        host: The machine.
        device: The name of its GPU or processor.
        native: The precisions that the device has instructions for.
        kernels: What computes on the device, as it can change the last bits of a result.
        cores: The CPU cores that the process may run on.
        threads: The number that ``OMP_NUM_THREADS`` gives; None if it is not set.
        process: The process id.
        memory: The memory of the machine in bytes; None if it need not hold the model.
        refused: Why the attention backend cannot run, by precision.
        probe: What the process reads in the run folder; None if nothing.
        settings: A digest of the version of this package, and of the configurations of the run and of DeepSpeed.
        corpus: The identity of the corpus.
        init: The SHA-256 of the weights that a new run starts from; None for random weights or a bundle that is gone.
    """

    host: str
    device: str
    native: frozenset[Precision]
    kernels: Mapping[str, str]
    cores: frozenset[int] = frozenset()
    threads: int | None = None
    process: int = 0
    memory: int | None = None
    refused: Mapping[Precision, str] = field(default_factory=dict)
    probe: str | None = None
    settings: str = ""
    corpus: str = ""
    init: str | None = None

    @property
    def computes_on_cpu(self) -> bool:
        """Whether the device is a CPU, whose number of threads can change the last bits of a result."""
        return "cpu_kernels" in self.kernels


def describe_device(device: torch.device) -> Facts:
    """The facts of a device of this machine."""
    host = platform.node()
    if device.type == "cuda":
        name, kernels = torch.cuda.get_device_name(device), {"gpu_kernels": compiler_name()}
    else:
        name, kernels = processor_name(), {"cpu_kernels": kernels_fingerprint()}
    threads = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else None
    return Facts(host, name, native_precisions(device), kernels, usable_cores(), threads)


def check_machine(experiment: Experiment, *, is_first: bool) -> None:
    """Check what lies on this machine: the corpus, whose shards :func:`resolve` has not read, and the packages.

    Args:
        experiment: The experiment.
        is_first: Whether this is the first process of its machine. The others leave the corpus to it.

    Raises:
        DataError: A shard of the corpus is damaged.
        ConfigError: A tokenizer of BLEU is not installed.
    """
    if is_first:
        experiment.corpus.verify()
    build_task(experiment.corpus.manifest, experiment.config.validation)


def collect_facts(experiment: Experiment, device: torch.device) -> Facts:
    """The facts of this rank."""
    settings = [__version__, experiment.config.model_dump(), experiment.ds_config]
    return replace(
        describe_device(device),
        process=os.getpid(),
        memory=machine_memory(),
        refused=_refused_precisions(experiment, device),
        probe=read_probe(experiment.run),
        settings=hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest(),
        corpus=experiment.corpus.manifest.build_key,
        init=None if experiment.pretrained is None else experiment.pretrained.bundle.weights_sha256,
    )


def own_device() -> torch.device:
    """The first GPU of this machine, or its CPU where a run would train on it."""
    on_cpu = os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available()
    return torch.device("cpu") if on_cpu else torch.device("cuda", 0)


def native_precisions(device: torch.device) -> frozenset[Precision]:
    """The precisions that a device has instructions for."""
    if device.type == "cuda":
        return ALL if torch.cuda.get_device_capability(device) >= (8, 0) else ALL - {"bf16"}
    return frozenset({"fp32", *(name for name, any_of in _INSTRUCTIONS.items() if any_of & processor_flags())})


def machine_memory() -> int:
    """The memory of this machine, or the limit of its container, in bytes."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(physical, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # not in a container, or no limit ("max")
        return physical


def _refused_precisions(experiment: Experiment, device: torch.device) -> dict[Precision, str]:
    refused: dict[Precision, str] = {}
    for precision in ALL:
        try:
            check_backend(
                experiment.config.model, experiment.config.training.attention_backend, device, DTYPES[precision]
            )
        except ConfigError as error:
            refused[precision] = str(error)
    return refused
