"""Runs steps of beam search on a faked device, in a fresh process, and hands back their record."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

#: Source tokens of each sentence, with its end, and of its longest output: those that the first capacity holds.
SRC_TOKENS, LIMIT = 20, 32

#: Steps before the recorded ones, in which what a search keeps grows to its size.
WARM_UP = 4


@dataclass(frozen=True)
class RecordedSearch:
    """What steps of a search asked of the device.

    Attributes:
        operators: Calls of each operator, in all steps together.
        steps: Number of operators of each step.
        waits: How often the host waited for the device, by reason.
        search_bytes: The most bytes on the device beside the weights.
        predicted_bytes: The same by the rule that decides how many sentences fit.
    """

    operators: dict[str, int]
    steps: list[int]
    waits: dict[str, int]
    search_bytes: int
    predicted_bytes: int


def record_search(preset: str, sentences: int, vocabulary: int) -> RecordedSearch:
    """Record as many steps as lie between two looks at what is done, in a fresh process.

    Args:
        preset: The preset of the model.
        sentences: Sentences of the batch.
        vocabulary: Pieces of the vocabulary.

    Raises:
        AssertionError: The process failed; the message has its output.
    """
    from support.cuda.device import build_extension
    from support.processes.forks import environment
    from support.processes.launching import run_command

    with tempfile.TemporaryDirectory(prefix="dst-faked-") as folder:
        result = Path(folder, "record.json")
        given = [str(build_extension()), str(result), preset, str(sentences), str(vocabulary)]
        command = [sys.executable, "-m", "support.cuda.searches", *given]
        done = run_command(command, env=environment({"TORCH_COMPILE_DISABLE": "1"}))  # no device to compile for
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        return RecordedSearch(**json.loads(result.read_text(encoding="utf-8")))


def main(extension: str, result: str, preset: str, sentences: str, vocabulary: str) -> None:
    """In the fresh process: run the steps and write their record."""
    ctypes.CDLL(extension)  # before PyTorch, which looks for CUDA while it is imported
    from support.cuda.device import fake_device
    from support.cuda.record import Recorder

    recorder = Recorder()
    fake_device(recorder.wait)
    recorded = _run(preset, int(sentences), int(vocabulary), recorder)
    Path(result).write_text(json.dumps(asdict(recorded)), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # nothing to clean up


def _run(preset: str, sentences: int, vocabulary: int, recorder: Any) -> RecordedSearch:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from dstransformer.config import load_config
    from dstransformer.data.packing import Packing
    from dstransformer.decoding import beam, beam_search
    from dstransformer.decoding.engine import SearchMemory
    from dstransformer.model import Ensemble, Transformer

    config = load_config(preset, [f"decoding.max_extra_tokens={LIMIT - SRC_TOKENS}"])
    real = Packing.from_lengths([SRC_TOKENS] * sentences)
    counts: list[int] = []
    choose = beam._Search.choose_rows

    def count(search: Any) -> Any:
        """Note the operators so far; the search ends after the last recorded step."""
        counts.append(recorder.operators.total())
        if len(counts) == WARM_UP + 1:
            recorder.operators.clear()
            recorder.waits.clear()
            counts[-1] = 0
        return None if len(counts) == WARM_UP + beam.CHECK_STEPS + 1 else choose(search)

    with FakeTensorMode() as mode, recorder, torch.inference_mode():
        model = Transformer(config.model, vocabulary).to("cuda", torch.bfloat16).eval()
        src = torch.zeros(sentences * SRC_TOKENS, dtype=torch.int64, device="cuda")
        packing = Packing(mode.from_tensor(real.cu).to("cuda"), real.max_len, real.tokens)
        recorder.clear()
        weights = recorder.live_bytes
        ensemble = Ensemble([model])
        with (
            mock.patch.object(beam._Search, "choose_rows", count),
            mock.patch.object(beam, "output_limits", return_value=[LIMIT] * sentences),  # reads the lengths
        ):
            beam_search(ensemble, src, packing, config.decoding, vocab_size=vocabulary)
    calls: dict[str, int] = {}
    for (name, _), number in recorder.operators.items():
        calls[name] = calls.get(name, 0) + number
    memory = SearchMemory.of(ensemble, config.decoding)
    return RecordedSearch(
        operators=calls,
        steps=[after - before for before, after in zip(counts[WARM_UP:], counts[WARM_UP + 1 :], strict=False)],
        waits=dict(recorder.waits),
        search_bytes=recorder.peak_bytes - weights,
        predicted_bytes=sentences * memory.sentence_bytes(SRC_TOKENS),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
