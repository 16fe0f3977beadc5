"""``dst`` sets what PyTorch and OpenMP read when they are loaded, before it loads them."""

from __future__ import annotations

import sys

import pytest
from support.processes.forks import environment
from support.processes.launching import run_command

PROGRAM = """
import os
from dstransformer.cli import main
main(["presets"])
print(os.environ.get("GOMP_SPINCOUNT"), os.environ.get("PYTORCH_CUDA_ALLOC_CONF"))
"""

GROWS = "expandable_segments:True"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, f"1000 {GROWS}"),
        ({"GOMP_SPINCOUNT": "7", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, "7 backend:native"),
        ({"OMP_WAIT_POLICY": "active", "PYTORCH_ALLOC_CONF": "backend:native"}, "None None"),
    ],
    ids=["unset", "the user's values", "the user's other names"],
)
def test_variables_are_set_unless_the_user_did(variables: dict[str, str], expected: str) -> None:
    ours = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    clean = {name: value for name, value in environment().items() if name not in ours}
    done = run_command([sys.executable, "-c", PROGRAM], env=clean | variables)
    assert done.stdout.splitlines()[-1] == expected, done.stderr
