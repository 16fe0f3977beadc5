"""The memory of a machine that this process may still take: what is free, within the limits of its groups and its own.

The formats of the files are those of proc(5) and of the kernel's page on control groups, version 2.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_PROC, _CGROUPS = Path("/proc/self"), Path("/sys/fs/cgroup")
_LIMITS = {"VmSize": resource.RLIMIT_AS, "VmData": resource.RLIMIT_DATA}


def shared_memory_left() -> int:
    """Bytes that the processes of this machine, or of this container or job, may still take together."""
    return min([psutil.virtual_memory().available, *_left_in_cgroups(_PROC / "cgroup", _CGROUPS)])


def own_memory_left() -> int | None:
    """Bytes that this process may still take by its own limits (``ulimit -v``, ``-d``); None without a limit."""
    left = [
        limit - status(name)
        for name, kind in _LIMITS.items()
        if (limit := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY
    ]
    return max(0, min(left)) if left else None


def limit_own_memory(left: int) -> None:
    """Let an allocation beyond so many bytes more raise an error. Otherwise the kernel would end some process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [status("VmData") + left, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))


def status(name: str) -> int:
    """A size of this process in bytes, by its name in ``/proc/self/status``: ``VmRSS``, or its peak ``VmHWM``."""
    for line in (_PROC / "status").read_text().splitlines():
        field, _, value = line.partition(":")
        if field == name:
            return int(value.split()[0]) * 1024
    raise KeyError(name)


def _left_in_cgroups(membership: Path, root: Path) -> Iterator[int]:
    """What the limits of this process's control group, and of those around it, leave; files that may go count as free.

    Args:
        membership: The file that names the group.
        root: Where the groups are.
    """
    name = ""
    with suppress(OSError):
        lines = membership.read_text().splitlines()
        name = next((line[4:] for line in lines if line.startswith("0::/")), "")
    for group in (root / name, *(root / name).parents):
        with suppress(OSError, ValueError):  # no limit ("max"), or outside of the groups
            limit = int((group / "memory.max").read_text())
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            used = int((group / "memory.current").read_text()) - int(statistics["inactive_file"])
            yield max(0, limit - used)
        if group == root:
            return
