"""The systems that translate, behind one interface: a process that has loaded its model and waits for work."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from benchmarks.peers.drivers.run_dstransformer import LAST
from benchmarks.peers.drivers.translation import Request
from benchmarks.peers.environments import python_of
from benchmarks.peers.systems import DRIVERS
from benchmarks.peers.text import HeldOut, Pieces
from dstransformer.distributed.world import usable_cores

OURS = "dstransformer"

#: Whose model, below the folder of trained ones, each system translates with.
MODELS = {
    "huggingface": "huggingface",
    "eole": "eole",
    "sockeye": "sockeye",
    "ctranslate2": "huggingface",
    "ctranslate2-workers": "huggingface",
    OURS: f"{OURS}/{LAST}",
}

BEAM_SIZE = 4
LENGTH_PENALTY = 0.6
EXTRA_TOKENS = 50

#: After the name of a system: as many batches at once as there are cores, one thread each, not one batch after another.
WORKERS = "-workers"


@dataclass(frozen=True)
class Translation:
    """What a system made of a text, in the order of the text, and how long that took."""

    pieces: list[list[str]]
    seconds: float

    @property
    def tokens(self) -> int:
        """Of the output, ends of sentences included."""
        return sum(len(sentence) + 1 for sentence in self.pieces)


class UnsupportedError(Exception):
    """The system cannot do this; says why."""


class Worker:
    """A system with its model in a process of its own, from ``__enter__`` to ``__exit__``.

    Args:
        system: One of ``MODELS``.
        model: What its training left.
        cache: Where the environments are.
        environment: Of the process.
    """

    def __init__(
        self,
        system: str,
        model: Path,
        text: HeldOut,
        pieces: Pieces,
        precision: str,
        cache: Path,
        environment: Mapping[str, str],
    ) -> None:
        self._system, self._workers = (
            system.removesuffix(WORKERS),
            len(usable_cores()) if system.endswith(WORKERS) else 1,
        )
        self._model = model.absolute()
        self._text = text
        self._pieces = pieces
        self._precision = precision
        self._python = sys.executable if system == OURS else str(python_of(self._system, cache))
        self._environment = dict(environment)
        lengths = np.array([len(sentence) for sentence in text.pieces])
        self._order = np.argsort(-lengths, kind="stable")  # the longest first

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="dst-bench-")
        try:
            self._start(Path(self._folder.name))
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def _start(self, folder: Path) -> None:
        (folder / "work").mkdir()
        self._pieces.write_vocabulary(folder / "vocabulary.txt")
        lines = (" ".join(self._text.pieces[number]) for number in self._order)
        (folder / "source").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        request = Request(
            model=str(self._model),
            work=str(folder / "work"),
            text=str(folder),
            precision=self._precision,
            beam_size=BEAM_SIZE,
            length_penalty=LENGTH_PENALTY,
            extra_tokens=EXTRA_TOKENS,
            threads=len(usable_cores()),
            workers=self._workers,
        )
        self._errors = (folder / "errors").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [self._python, str(DRIVERS / f"translate_{self._system}.py"), json.dumps(asdict(request))],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
        )
        answer = self._read()
        if "unsupported" in answer:
            self._stop()
            raise UnsupportedError(answer["unsupported"])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def translate(self, batch: int) -> Translation:
        """Translate the text, so many sentences at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{batch}\n")
        self._process.stdin.flush()
        answer = self._read()
        found: list[list[str]] = [[] for _ in self._order]
        for number, sentence in zip(self._order, answer["translations"], strict=True):
            found[number] = sentence
        return Translation(found, answer["seconds"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            raise SystemExit(f"{self._system} failed with exit code {code}:\n{self._errors.read()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _stop(self) -> None:
        """Its input ends, so it does; nothing is lost where it has to be killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def score(translation: Translation, text: HeldOut, pieces: Pieces) -> float:
    """Cased BLEU of detokenised text, by sacrebleu with its defaults; see ``signature``."""
    return float(BLEU().corpus_score(pieces.join(translation.pieces), [text.references]).score)


def signature() -> str:
    """Of ``score``."""
    metric = BLEU()
    metric.corpus_score(["text"], [["text"]])
    return str(metric.get_signature())
