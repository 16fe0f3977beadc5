"""Feeds damaged files to a reader, in a process of its own that has little memory and little time."""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import os
import resource
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from dstransformer.errors import DstError
from support.faults.mutations import Change, changes

#: Inputs of all readers together.
DEFAULT_INPUTS = 600

#: Bytes of address space that a reader may take beyond what its process has at the start.
MEMORY = 2 * 2**30

#: Time limit in seconds for one input. An input takes milliseconds, so only a reader that hangs exceeds it.
INPUT_SECONDS = 120


@dataclass(frozen=True)
class Target:
    """A reader and valid files for it.

    Attributes:
        name: For the test.
        make: Writes valid files into a new folder.
        read: Reads them from there.
        damaged: Patterns of the files to damage.
        hashes: Whether files state hashes of other files. Half of the inputs then have correct hashes, as an
            attacker's would.
        refusals: The errors with which it may refuse a file.
    """

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    damaged: tuple[str, ...] = ("**/*",)
    hashes: bool = False
    refusals: tuple[type[BaseException], ...] = field(default=(DstError,))

    def __str__(self) -> str:
        return self.name


class BrokenContractError(Exception):
    """An error is not one line for a user."""


def inputs_for_each(readers: int) -> int:
    """Number of inputs for each reader: ``DST_FUZZ``, or a share of :data:`DEFAULT_INPUTS`."""
    return int(os.environ.get("DST_FUZZ", -(-DEFAULT_INPUTS // readers)))


def fuzz(target: Target, folder: Path, inputs: int) -> None:
    """Read damaged variants of the files of a target. Each must be read, or refused in one line.

    Args:
        target: The reader.
        folder: An empty folder.
        inputs: Number of variants. The same number gives the same variants, unless ``DST_FUZZ_SEED`` is set.
    """
    report, last = folder / "report", folder / "last"
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # what earlier tests left may own threads, which a child must not end: they are not there
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _fuzz(target, folder / "files", last, inputs)
            status = 0
        except BaseException:
            text = "\n".join(line[:300] for line in traceback.format_exc().splitlines()[-30:])
            report.write_text(text, encoding="utf-8", errors="backslashreplace")
        finally:
            os._exit(status)
    gc.unfreeze()
    _, status = os.waitpid(child, 0)
    if status == 0:
        return
    reason = f"was ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "failed"
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in (report, last) if path.exists()]
    pytest.fail(f"{target} {reason}\n" + "\nthe last input: ".join(texts), pytrace=False)


def _fuzz(target: Target, folder: Path, last: Path, inputs: int) -> None:
    folder.mkdir()
    target.make(folder)
    good = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    names = sorted({str(path.relative_to(folder)) for pattern in target.damaged for path in folder.glob(pattern)})
    names = [name for name in names if name in good]
    assert names, target.name
    _watch()
    target.read(folder)  # valid files must be read; the first call also imports modules
    _limit_memory()

    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        derandomize="DST_FUZZ_SEED" not in os.environ,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(changes({name: good[name] for name in names}, with_hashes=target.hashes))
    def each(change: Change) -> None:
        _watch()
        last.write_text(repr(change), encoding="utf-8", errors="backslashreplace")
        last.with_suffix(".content").write_bytes(change.content)
        written = {change.name: change.content}
        if change.fix_hashes:
            written |= _with_correct_hashes(good, change)
        for name, content in written.items():
            (folder / name).write_bytes(content)
        try:
            target.read(folder)
        except target.refusals as error:
            text = str(error)
            if "\n" in text or not text.strip() or len(text) > 3000:
                raise BrokenContractError(text) from error
        finally:
            _restore(folder, good)

    if "DST_FUZZ_SEED" in os.environ:
        each = seed(int(os.environ["DST_FUZZ_SEED"]))(each)
    each()


def _watch() -> None:
    """End the process and print its stacks if it hangs from now on."""
    faulthandler.dump_traceback_later(INPUT_SECONDS, exit=True, file=2)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _restore(folder: Path, good: dict[str, bytes]) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and str(path.relative_to(folder)) not in good:
            path.unlink()
    for name, content in good.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != content:
            path.write_bytes(content)


def _with_correct_hashes(good: dict[str, bytes], change: Change) -> dict[str, bytes]:
    """The files that state the hash of the changed one, and of each other, with the new hash."""
    now = {**good, change.name: change.content}
    pending = [change.name]
    while pending:
        name = pending.pop()
        old, new = (hashlib.sha256(files[name]).hexdigest().encode() for files in (good, now))
        for other, content in now.items():
            if other != name and old in content:
                now[other] = content.replace(old, new)
                pending.append(other)
    return {name: content for name, content in now.items() if content != good[name]}
