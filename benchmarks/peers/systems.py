"""The systems that are compared, behind one interface: prepare once, then measure."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.lib.processes import run_command
from benchmarks.peers.drivers import run_dstransformer
from benchmarks.peers.drivers.harness import Measurement, Request
from benchmarks.peers.drivers.run_dstransformer import Launch
from benchmarks.peers.environments import python_of
from benchmarks.peers.text import Text

DRIVERS = Path(__file__).with_name("drivers")
PEERS = ("huggingface", "eole", "sockeye")


class System(ABC):
    """Something that trains."""

    #: What differs from the common recipe, as of ``dst train --set``.
    values: Sequence[str] = ()

    def __init__(self, name: str, *, ours: bool) -> None:
        self.name = name
        self.ours = ours

    @abstractmethod
    def prepare(self, cache: Path) -> None:
        """Install what is not there yet, into ``cache``."""

    @abstractmethod
    def measure(self, request: Request, text: Text, environment: Mapping[str, str]) -> Measurement:
        """Train as ``request`` says, in processes of its own with these environment variables."""


class Peer(System):
    """A driver that runs in the peer's own environment."""

    def __init__(self, name: str) -> None:
        super().__init__(name, ours=False)

    def prepare(self, cache: Path) -> None:
        self._python = python_of(self.name, cache)

    def measure(self, request: Request, text: Text, environment: Mapping[str, str]) -> Measurement:
        del text  # the request names the folder of pieces
        driver = DRIVERS / f"run_{self.name}.py"
        done = run_command([str(self._python), str(driver), json.dumps(asdict(request))], environment)
        return Measurement(**json.loads(done.stdout.splitlines()[-1]))


class Dstransformer(System):
    """``dst train`` on ranks × threads that fill the cores.

    Args:
        ranks: Processes.
        threads: Threads of each.
        values: What differs from the common recipe, as of ``dst train --set``.
    """

    def __init__(self, ranks: int, threads: int, values: Sequence[str] = ()) -> None:
        plural = "" if threads == 1 else "s"
        super().__init__(f"dstransformer, {ranks} rank{'s' if ranks > 1 else ''} × {threads} thread{plural}", ours=True)
        self._ranks = ranks
        self._threads = threads
        self.values = values

    def prepare(self, cache: Path) -> None:
        pass

    def measure(self, request: Request, text: Text, environment: Mapping[str, str]) -> Measurement:
        run = Launch(self._ranks, self._threads, self.values)
        return run_dstransformer.measure(request, text.corpus, run, environment)


def build_systems(names: list[str], cores: int) -> list[System]:
    """The peers named, then both layouts of ours."""
    return [*(Peer(name) for name in names), *(Dstransformer(ranks, cores // ranks) for ranks in sorted({cores, 1}))]
