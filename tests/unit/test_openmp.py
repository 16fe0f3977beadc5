"""Waiting OpenMP threads must not take cores from other work: the package limits spinning before OpenMP loads."""

from __future__ import annotations

import sys

import pytest
from support.processes.forks import environment
from support.processes.launching import run_command

PROGRAM = "import dstransformer, os; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=["unset", "the user's count", "the user's policy"],
)
def test_the_spin_count_is_set_unless_the_user_did(variables: dict[str, str], expected: str) -> None:
    clean = {k: v for k, v in environment().items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = run_command([sys.executable, "-c", PROGRAM], env=clean | variables)
    assert done.stdout.strip() == expected, done.stderr
