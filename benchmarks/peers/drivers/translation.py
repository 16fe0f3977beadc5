"""What a translating driver is asked for and what it answers: load once, then translate as often as wanted.

Standard library only: this runs in the environment of every system. Requests come on the command line and on standard
input, answers go out on standard output, each an object in JSON on a line. What a system prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Every tenth sentence is translated once, in the same batches, before the clock runs: that traces and allocates.
WARM_UP_EVERY = 10

Sentences = list[list[str]]


@dataclass(frozen=True)
class Request:
    """What to load and how to search.

    Attributes:
        model: What the system's training left.
        work: Empty folder for whatever the system writes.
        text: Folder with ``source`` (a sentence a line, pieces separated by spaces) and ``vocabulary.txt``.
        length_penalty: ``alpha``; the paper's penalty where a system has it, else that power of the length.
        extra_tokens: The output is at most this much longer than the input, where a system can say that.
        threads: That compute.
        workers: That share the threads and translate a batch each; of a system that has them, else 1.
    """

    model: str
    work: str
    text: str
    precision: str
    beam_size: int
    length_penalty: float
    extra_tokens: int
    threads: int
    workers: int

    def sentences(self) -> Sentences:
        """The text to translate, as pieces."""
        with (Path(self.text) / "source").open(encoding="utf-8") as file:
            return [line.split() for line in file]

    def vocabulary(self) -> list[str]:
        """The pieces in the order of their ids; the first four are pad, unknown, begin and end of sentence."""
        return (Path(self.text) / "vocabulary.txt").read_text(encoding="utf-8").split("\n")[:-1]


#: Pieces of sentences of about falling length, and how many to translate at once, to the pieces of their translations.
Translate = Callable[[Sentences, int], Sentences]


class UnsupportedError(Exception):
    """The system cannot do this at all; says why."""


def main(load: Callable[[Request], Translate]) -> None:
    """A driver's main program: after ``ready``, a batch size in, a translation of the text and its seconds out."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    request = Request(**json.loads(sys.argv[1]))
    sys.argv[1:] = []
    sentences = request.sentences()
    try:
        translate = load(request)
    except UnsupportedError as error:
        answer(unsupported=str(error))
        return
    answer(ready=True)
    warm: set[int] = set()
    for line in sys.stdin:
        batch = int(line)
        if batch not in warm:
            translate(sentences[::WARM_UP_EVERY], batch)
            warm.add(batch)
        began = time.perf_counter()
        translations = translate(sentences, batch)
        answer(seconds=time.perf_counter() - began, translations=translations)
