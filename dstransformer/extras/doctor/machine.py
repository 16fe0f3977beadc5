"""Checks of this machine: versions, devices, the compiler, disk, shared memory, ports and clock."""

from __future__ import annotations

import errno
import os
import platform
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from dstransformer import __version__
from dstransformer.errors import counted
from dstransformer.extras.doctor.finding import Finding
from dstransformer.io.requirements import PROJECT, installed_extras, supported_versions

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

PACKAGES = ("torch", "deepspeed", "mlflow", "sentencepiece")

GIB = 2**30

#: Free bytes below which a run soon fails, and below which a long one may. A checkpoint of ``base`` has 0.8 GiB, and
#: twenty of them stay.
LITTLE_DISK, SCARCE_DISK = GIB, 20 * GIB

#: Bytes of shared memory below which NCCL fails, and below which it may: Docker's default is 64 MiB.
LITTLE_SHM, SCARCE_SHM = 32 * 2**20, GIB

#: The port at which DeepSpeed, torchrun and PyTorch let processes join, if nothing else is said.
DEFAULT_PORT = 29500

#: Bytes that are written to see whether a disk takes them.
_PROBE_BYTES = 2**20

#: Seconds by which the clock of a file server may differ from this machine's.
_CLOCK_SECONDS = 5.0

#: When this package was first released: an earlier clock is wrong.
_RELEASE = 1_790_000_000


def check_versions() -> Iterator[Finding]:
    """Whether Python and the packages that a training needs are there, in versions that this package takes."""
    needed = supported_versions()
    if not needed:
        yield Finding(
            "dstransformer", f"{__version__}, not installed by pip", "note",
            "the versions that it takes are not known; pip install -e . in its folder",
        )  # fmt: skip
    else:
        yield Finding("dstransformer", __version__)
    for name in ("python", *PACKAGES):
        try:
            found = platform.python_version() if name == "python" else version(name)
        except PackageNotFoundError:
            yield Finding(name, "not installed", "FAULT", f"pip install '{name}{needed.get(name, '')}'")
            continue
        if name in needed and not needed[name].contains(found, prereleases=True):
            advice = (
                "make a new environment with one of them" if name == "python" else f"pip install '{name}{needed[name]}'"
            )
            yield Finding(name, f"{found}, not {_range(needed[name])}", "FAULT", advice)
        else:
            yield Finding(name, f"{found} (takes {_range(needed[name])})" if name in needed else found)
    if extras := installed_extras():
        there, missing = (
            ", ".join(name for name in extras if extras[name] is fits) or "none" for fits in (True, False)
        )
        yield Finding("extras", f"{there}; not installed: {missing} (pip install '{PROJECT}[NAME]')")


def _range(versions: SpecifierSet) -> str:
    """The versions as text, the lowest first."""
    return ",".join(sorted(map(str, versions), key=lambda text: (text.startswith("<"), text)))


def check_devices() -> Finding | list[Finding]:
    """The GPUs, or why PyTorch cannot use them, or the processor. Imports PyTorch."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding(
            "devices", f"PyTorch cannot be imported ({error})", "FAULT", "pip install --force-reinstall torch"
        )
    from dstransformer.distributed.hardware import find_driver_problem, usable_cores

    if (problem := find_driver_problem(os.environ)) is not None:
        return Finding(
            "devices", f"an NVIDIA GPU that PyTorch {torch.__version__} cannot use ({problem}), so the CPU trains",
            "FAULT", "install a PyTorch that fits the driver, or a newer driver",
        )  # fmt: skip
    if torch.cuda.is_available():
        return list(map(_describe_gpu, range(torch.cuda.device_count())))
    hidden = "; CUDA_VISIBLE_DEVICES hides the GPUs" if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") else ""
    return Finding("devices", f"no GPU, {counted(len(usable_cores()), 'core')} for training{hidden}")


def _describe_gpu(number: int) -> Finding:
    import torch

    name, sheet = f"GPU {number}", torch.cuda.get_device_properties(number)
    major, minor = torch.cuda.get_device_capability(number)
    text = f"{sheet.name}, {sheet.total_memory / GIB:.1f} GiB, driver {_driver_version()}, CUDA {torch.version.cuda}"
    built = torch.cuda.get_arch_list()
    if built and not any(int(arch.rpartition("_")[2].rstrip("a")) // 10 == major for arch in built if "_" in arch):
        return Finding(
            name, f"{text}; PyTorch {torch.__version__} is not built for its compute capability {major}.{minor}",
            "FAULT", "install a PyTorch that lists it",
        )  # fmt: skip
    free, total = torch.cuda.mem_get_info(number)
    if free < 0.9 * total:
        used = (total - free) / GIB
        return Finding(name, f"{text}; {used:.1f} GiB in use", "note", "nvidia-smi names the processes; end them")
    return Finding(name, text)


def _driver_version() -> str:
    with suppress(Exception):
        import pynvml  # type: ignore[import-untyped, unused-ignore]

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    return "(unknown)"


def check_compiler() -> Finding:
    """Whether a C++ compiler compiles: the CPU kernels and DeepSpeed's offloading need one."""
    loss = "without one, training on a CPU is slower and offloading to it fails"
    try:
        command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    except ValueError as error:
        return Finding("compiler", f"CXX is {os.environ['CXX']!r}, no command ({error}); {loss}", "note", "unset CXX")
    if shutil.which(command[0]) is None:
        return Finding("compiler", f"{command[0]} is not installed; {loss}", "note", "apt-get install g++, or set CXX")
    program = "#include <cmath>\n#include <vector>\nint main() { return 0; }\n"
    checked = subprocess.run(
        [*command, "-fsyntax-only", "-x", "c++", "-"], input=program, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    if checked.returncode:
        reason = (checked.stderr.strip().splitlines() or [f"status {checked.returncode}"])[0]
        return Finding("compiler", f"{command[0]} does not compile ({reason}); {loss}", "note", "install libstdc++-dev")
    stated = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    return Finding("compiler", (stated.splitlines() or [command[0]])[0])


def check_disk(runs: Path) -> Finding | list[Finding]:
    """Whether the disk of the folder of runs takes what is written to it, and how much more it has room for."""
    folder = next(path for path in (runs.absolute(), *runs.absolute().parents) if os.path.lexists(path))
    if not folder.is_dir():
        return Finding("disk", f"{folder} is not a folder", "FAULT", "name the folder of runs with --runs")
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".dst-doctor-") as file:
            before = time.time()
            file.write(os.urandom(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
            modified, after = Path(file.name).stat().st_mtime, time.time()
    except OSError as error:
        advice = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the path and its permissions"
        return Finding("disk", f"{folder} cannot be written: {error.strerror}", "FAULT", advice)
    room = describe_room("disk", folder, LITTLE_DISK)
    skew = modified - min(max(modified, before), after)  # how far the clock of the file system is ahead
    if abs(skew) <= _CLOCK_SECONDS:
        return room
    server = f"its clock is {skew:+.0f} s from this machine's ({folder})"
    return [room, Finding("file server", server, "FAULT", "set both by NTP (chrony, systemd-timesyncd)")]


def describe_room(name: str, folder: Path, needed: float) -> Finding:
    """How much room the disk of a folder has, and whether that is less than what is ``needed``, in bytes."""
    free = shutil.disk_usage(folder).free
    text = f"{free / GIB:,.1f} GiB free at {folder}"
    if free < needed:
        return Finding(name, text, "FAULT", f"make room: the next checkpoint needs {needed / GIB:.1f} GiB")
    if free < SCARCE_DISK:
        return Finding(name, text, "note", "enough to start; checkpoint.keep_last and keep_best say how many stay")
    return Finding(name, text)


def check_shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """Whether there is enough shared memory, through which NCCL's processes of a node communicate."""
    if not folder.is_dir():
        return Finding("/dev/shm", "there is none", "FAULT", "mount a tmpfs there; NCCL needs it")
    usage = shutil.disk_usage(folder)
    text = f"{usage.free / 2**20:,.0f} of {usage.total / 2**20:,.0f} MiB free"
    advice = "docker run --shm-size=8g, or an emptyDir with medium: Memory in Kubernetes"
    if not os.access(folder, os.W_OK):
        return Finding("/dev/shm", "cannot be written", "FAULT", "chmod 1777 /dev/shm")
    if usage.free < LITTLE_SHM:
        return Finding("/dev/shm", text, "FAULT", f"too little for NCCL: {advice}; or remove old files from it")
    if usage.total < SCARCE_SHM:
        return Finding("/dev/shm", text, "note", f"little for several GPUs: {advice}")
    return Finding("/dev/shm", text)


def check_port(environment: Mapping[str, str]) -> Finding:
    """Whether the port is free at which the processes of a run join."""
    named = environment.get("MASTER_PORT", str(DEFAULT_PORT))
    if not (named.isascii() and named.isdecimal() and 0 < int(named) < 65536):
        return Finding("port", f"MASTER_PORT is {named!r}, which is no port", "FAULT", "set 1 to 65535, or unset it")
    port = int(named)
    if is_free(port):
        return Finding("port", f"{port} is free, where the processes of a run join")
    other = next((each for each in range(DEFAULT_PORT + 1, 65536) if is_free(each)), 0)
    return Finding(
        "port", f"{port}, where the processes of a run join, is in use{_name_listener(port)}", "FAULT",
        f"end that program, or add --master_port {other} to deepspeed, --master-port {other} to torchrun, or set "
        f"MASTER_PORT={other}",
    )  # fmt: skip


def is_free(port: int) -> bool:
    """Whether a server can listen at a port of this machine."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            listener.listen()
        except OSError:
            return False
    return True


def _name_listener(port: int) -> str:
    """`` by process 12 (python)``; empty if that is not known, as of another user's process."""
    with suppress(psutil.Error):
        for one in psutil.net_connections("tcp"):
            if one.laddr and one.laddr.port == port and one.status == psutil.CONN_LISTEN and one.pid:
                return f" by process {one.pid} ({psutil.Process(one.pid).name()})"
    return ""


def check_clock(now: float | None = None) -> Finding:
    """Whether the clock is plausible, in Unix seconds: MLflow and the exit status of a run go by it."""
    when = time.time() if now is None else now
    text = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(when))
    if when < _RELEASE:
        return Finding("clock", f"{text} is before this version was released", "FAULT", "set it by NTP")
    return Finding("clock", text)
