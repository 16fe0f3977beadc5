"""An environment for each peer, created from its pinned requirements at first use."""

from __future__ import annotations

import shutil
import venv
from pathlib import Path

from benchmarks.lib.processes import run_command

REQUIREMENTS = Path(__file__).with_name("requirements")


def python_of(peer: str, cache: Path) -> Path:
    """The interpreter of the peer's environment below ``cache``; a missing or outdated one is created."""
    folder, wanted = cache / f"{peer}-venv", REQUIREMENTS / f"{peer}.txt"
    python, installed = folder / "bin" / "python", folder / "installed.txt"
    if installed.exists() and installed.read_bytes() == wanted.read_bytes():
        return python
    print(f"installing {peer} into {folder} …", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # PyTorch first, with what that build of it needs. The lists are complete, so nothing is resolved after it; that
    # also lets Sockeye, which asks for torch below 1.14, run on the PyTorch of all others.
    run_command([*pip, "--constraint", str(wanted), "torch"])
    run_command([*pip, "--no-deps", "--requirement", str(wanted)])
    shutil.copyfile(wanted, installed)
    return python
