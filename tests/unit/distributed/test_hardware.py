from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dstransformer.distributed import hardware
from dstransformer.distributed.hardware import (
    CUDA_VARIABLES,
    choose_device,
    find_driver_problem,
    set_device_variables,
    share_cores,
)
from dstransformer.distributed.launcher import Processes
from dstransformer.errors import UserError


@pytest.mark.parametrize(("local_rank", "visible", "chosen"), [(3, 4, 3), (3, 1, 0), (0, 1, 0), (4, 4, None)])
def test_the_only_visible_gpu_is_taken_by_any_local_rank(
    monkeypatch: pytest.MonkeyPatch, local_rank: int, visible: int, chosen: int | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    processes = Processes(local_rank, local_rank, 8)
    if chosen is None:
        with pytest.raises(UserError, match=r"4 GPUs.*local rank 4"):
            choose_device(processes, {})
    else:
        assert choose_device(processes, {}) == torch.device("cuda", chosen)


def test_a_gpu_that_pytorch_cannot_use_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_driver_problem({}) is None, "there is no driver"
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(hardware, "NVIDIA_DEVICE", tmp_path / "nvidiactl")
    reason = "Found no NVIDIA driver on your system" if torch.version.cuda else "Torch not compiled with CUDA enabled"
    assert find_driver_problem({}) == reason
    assert find_driver_problem({"CUDA_VISIBLE_DEVICES": ""}) is None, "the user has hidden the GPUs"


def test_variables_of_a_gpu_that_the_user_has_set_stay() -> None:
    environment = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    set_device_variables(environment, torch.device("cuda", 0))
    own = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "LOCAL_RANK": "0"}
    assert environment == CUDA_VARIABLES | own


def test_the_heartbeat_fits_the_int_in_which_pytorch_counts_milliseconds() -> None:
    """Above that the threads that watch it, one for each group of NCCL, poll without a pause."""
    assert 0 < 1000 * int(CUDA_VARIABLES["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]) < 2**31


@pytest.mark.parametrize(("others", "threads"), [
    ([], 8), ([("here", range(8))], 4), ([("here", range(8)), ("here", range(8))], 2), ([("there", range(8))], 8),
    ([("here", range(8, 16))], 8), ([("here", range(4))], 4), ([("here", range(8))] * 20, 1),
], ids=["alone", "two", "three", "other machine", "own cores", "overlap", "more ranks than cores"])  # fmt: skip
def test_processes_share_the_cores_that_they_may_run_on(others: list[tuple[str, range]], threads: int) -> None:
    mine = ("here", frozenset(range(8)))
    assert share_cores(mine, [mine, *((node, frozenset(cores)) for node, cores in others)]) == threads
