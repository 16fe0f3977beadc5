from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dstransformer.distributed import hardware
from dstransformer.extras.doctor.finding import Finding, collect, describe
from dstransformer.extras.doctor.machine import check_devices

FINDINGS = [
    Finding("disk", "63.0 GiB free at /data"),
    Finding("port", "29500, where the processes of a run join, is in use", "FAULT", "end that program\x1b[31m, or add"),
]


def test_a_finding_is_a_line_that_a_terminal_wraps() -> None:
    assert describe(FINDINGS, None).splitlines() == [
        "ok     disk           63.0 GiB free at /data",
        "FAULT  port           29500, where the processes of a run join, is in use: end that program\\x1b[31m, or add",
    ]
    wrapped = describe(FINDINGS, 60).splitlines()
    assert all(len(line) <= 60 for line in wrapped)
    assert [line[:22].strip() for line in wrapped] == ["ok     disk", "FAULT  port", "", ""]


def test_a_check_that_fails_is_a_finding() -> None:
    def fail() -> Iterator[Finding]:
        yield FINDINGS[0]
        raise ZeroDivisionError("by nothing")

    kept, finding = collect(("disk", fail))
    assert kept == FINDINGS[0]
    assert (finding.name, finding.level) == ("disk", "FAULT")
    assert finding.text == "the check itself failed: ZeroDivisionError: by nothing"


def test_a_gpu_that_pytorch_cannot_use_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(hardware, "NVIDIA_DEVICE", tmp_path / "nvidiactl")
    finding = check_devices()
    assert isinstance(finding, Finding)
    assert finding.level == "FAULT"
    reason = "Found no NVIDIA driver on your system" if torch.version.cuda else "Torch not compiled with CUDA enabled"
    assert f"cannot use ({reason}), so the CPU trains" in finding.text
