"""The systems that translate, behind one interface: a process that has loaded its model and waits for requests."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from benchmarks.lib.machine import count_cores
from benchmarks.lib.processes import Worker
from benchmarks.peers.drivers.run_dstransformer import LAST
from benchmarks.peers.drivers.translation import Request
from benchmarks.peers.environments import python_of
from benchmarks.peers.systems import DRIVERS
from benchmarks.peers.text import HeldOut, Pieces

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
    """The translation of a text, in the order of the text, and how long it took."""

    pieces: list[list[str]]
    seconds: float

    @property
    def tokens(self) -> int:
        """Of the output, ends of sentences included."""
        return sum(len(sentence) + 1 for sentence in self.pieces)


class UnsupportedError(Exception):
    """The system cannot do this; says why."""


class Translator:
    """A system with its model in a process of its own, from ``__enter__`` to ``__exit__``.

    Args:
        system: One of ``MODELS``.
        model: What its training left.
        text: What to translate.
        pieces: The tokenizer of the text and the model.
        precision: Of the computation.
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
        name = system.removesuffix(WORKERS)
        python = sys.executable if system == OURS else str(python_of(name, cache))
        self._command = [python, str(DRIVERS / f"translate_{name}.py")]
        self._workers = count_cores() if system.endswith(WORKERS) else 1
        self._model = model.absolute()
        self._text = text
        self._pieces = pieces
        self._precision = precision
        self._environment = environment
        lengths = np.array([len(sentence) for sentence in text.pieces])
        self._order = np.argsort(-lengths, kind="stable")  # the longest first

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dst-bench-"))), stack)
            self._stack = stack.pop_all()
        return self

    def _start(self, folder: Path, stack: ExitStack) -> None:
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
            threads=count_cores(),
            workers=self._workers,
        )
        self._worker = Worker([*self._command, json.dumps(asdict(request))], self._environment)
        stack.callback(self._worker.end)
        answer = json.loads(self._worker.receive())
        if "unsupported" in answer:
            raise UnsupportedError(answer["unsupported"])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._worker.pid

    def translate(self, batch: int) -> Translation:
        """Translate the text in batches of ``batch`` sentences."""
        self._worker.send(batch)
        answer = json.loads(self._worker.receive())
        found: list[list[str]] = [[] for _ in self._order]
        for number, sentence in zip(self._order, answer["translations"], strict=True):
            found[number] = sentence
        return Translation(found, answer["seconds"])


def score(translation: Translation, text: HeldOut, pieces: Pieces) -> float:
    """Cased BLEU of detokenised text, by sacrebleu with its defaults; see ``signature``."""
    return float(BLEU().corpus_score(pieces.join(translation.pieces), [text.references]).score)


def signature() -> str:
    """Of ``score``."""
    metric = BLEU()
    metric.corpus_score(["text"], [["text"]])
    return str(metric.get_signature())
