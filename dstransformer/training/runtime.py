"""Imports DeepSpeed and prepares its environment, operators and log level."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from dstransformer.config import offloads_optimizer
from dstransformer.distributed.world import World
from dstransformer.errors import ConfigError

logger = logging.getLogger(__name__)

#: It warns of CUDA's tools on a machine without a GPU as soon as it is imported, by DeepSpeed too.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)


def wait_for_operator_builds(folder: Path, stale_seconds: float = 600.0) -> None:
    """Wait while another process builds an operator. PyTorch would wait forever, silently, even for a killed process.

    A lock is stale, and removed, after ``stale_seconds`` without a write to its folder.
    """
    for lock in folder.glob("**/deepspeed_*/lock"):
        logger.warning(
            "waiting for another process to build or load the DeepSpeed operator in %s; if that process was killed, "
            "this one continues in %.0f s",
            lock.parent,
            stale_seconds,
        )
        with contextlib.suppress(FileNotFoundError):
            while lock.exists() and time.time() - max(p.stat().st_mtime for p in lock.parent.iterdir()) < stale_seconds:
                time.sleep(0.2)
            lock.unlink()


def import_deepspeed(ds_config: Mapping[str, Any], world: World) -> Any:
    """Import DeepSpeed with its environment prepared, and let it join the process group.

    Its logger's lines go where those of others go: into the run's log, and to the terminal as far as that wants them.

    Raises:
        ConfigError: DeepSpeed rejects its configuration.
    """
    # DeepSpeed calls collectives by deprecated names; users cannot change that.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    # Building operators needs this environment's ninja, which is not on the PATH of a process started over ssh.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    from torch.utils.cpp_extension import get_default_build_root

    # Each installation builds operators in its own folder, from its own headers: two that shared one would rebuild them
    # again and again.
    own_folder = Path(get_default_build_root(), hashlib.sha256(sys.prefix.encode()).hexdigest()[:12])
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(own_folder))
    import deepspeed
    from deepspeed.utils import logger as deepspeed_logger

    deepspeed_logger.handlers.clear()
    deepspeed_logger.propagate = True
    deepspeed_logger.setLevel(logging.INFO)
    # It would log each skipped update, which the metrics have as ``skipped_share``, and warn of optimizers of ours.
    deepspeed_logger.addFilter(lambda record: not re.search("OVERFLOW!|untested optimizer", record.getMessage()))
    # On a CPU, DeepSpeed would compile a shared-memory all-reduce that only its inference engine uses.
    torch_backend: Any = import_module("deepspeed.comm.torch")
    torch_backend.build_shm_op = lambda *_, **__: None
    zero: Any = import_module("deepspeed.runtime.zero.stage_1_and_2")
    zero.mask_nan_or_inf_with_val_inplace = _mark_nonfinite
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    check_sections(ds_config)
    if offloads_optimizer(ds_config):
        operators = Path(os.environ["TORCH_EXTENSIONS_DIR"])
        wait_for_operator_builds(operators)
        if world.is_rank0 and not any(operators.glob("**/*.so")):
            logger.warning("DeepSpeed compiles its CPU Adam, once per installation: this may take a minute")
    return deepspeed


@contextlib.contextmanager
def rejections() -> Iterator[None]:
    """In the block, raise as :class:`ConfigError` what DeepSpeed has against its configuration."""
    from deepspeed import DeepSpeedConfigError

    try:
        yield
    except (ValidationError, DeepSpeedConfigError) as error:
        rejection = ConfigError(
            f"DeepSpeed rejects its configuration: {' '.join(str(error).split())[:300]}; "
            "fix the JSON given with --ds (`dst ds-config` prints the full configuration)"
        )
        rejection.shared = True  # all ranks have the same configuration
        raise rejection from None
    except ImportError as error:
        raise ConfigError(  # on this rank; another node may have it
            f"the DeepSpeed configuration needs a package that cannot be imported ({error}): install it, or remove "
            "the section from the JSON given with --ds"
        ) from None


def check_sections(ds_config: Mapping[str, Any]) -> None:
    """Check the sections that DeepSpeed closes to unknown keys: ``bf16``, ``fp16`` and ``zero_optimization``.

    Raises:
        ConfigError: A key is unknown, or a value is out of range or of the wrong type.
    """
    precision, zero = _import_quietly("deepspeed.runtime.precision_config", "deepspeed.runtime.zero.config")
    with rejections():
        precision.get_bfloat16_config(ds_config)
        precision.get_float16_config(ds_config)
        zero.get_zero_config(ds_config)


def _import_quietly(*names: str) -> list[Any]:
    """Import modules of DeepSpeed, which says on stdout what device it finds as soon as it is imported."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return [import_module(name) for name in names]
    finally:
        logging.disable(disabled)


def model_state_bytes(parameters: int, largest_layer: int, world_size: int) -> dict[str, int]:
    """Bytes of the model states on each GPU, by ZeRO stage: DeepSpeed's own estimates, without offloading.

    They assume what DeepSpeed calls 16-bit training with Adam: for each parameter, 2 bytes for the weight, and 18 for
    its fp32 copy, two moments and gradients in both precisions, which stage 2 divides by the processes. Stage 3 divides
    all, and gathers the largest layer. There is none for stages 0 and 1: stage 0 is that of one process, which divides
    nothing.
    """
    stage_2, stage_3 = _import_quietly("deepspeed.runtime.zero.stage_1_and_2", "deepspeed.runtime.zero.stage3")
    zero2, zero3 = stage_2.estimate_zero2_model_states_mem_needs, stage_3.estimate_zero3_model_states_mem_needs
    _, whole = zero2(parameters, 1, cpu_offload=False)
    _, divided = zero2(parameters, world_size, cpu_offload=False)
    _, scattered, _ = zero3(parameters, largest_layer, world_size, cpu_offload=False, cpu_offload_params=False)
    return {"zero0": whole, "zero2": divided, "zero3": scattered}


def _mark_nonfinite(norm: Tensor, device: object = None, val: float = -1.0) -> None:  # noqa: ARG001
    """Computes the same as DeepSpeed, which copies the constant to the GPU first, and waits for the copy."""
    norm.masked_fill_(~norm.isfinite(), val)
