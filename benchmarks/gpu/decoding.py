"""Measures decoding: beam search over synthetic sentences."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu.cases import Case
from benchmarks.gpu.profiling import Profile, make_profile
from benchmarks.gpu.text import draw_pieces
from benchmarks.lib.limits import Limits, measure_limits, synchronize
from benchmarks.lib.workload import sample_lengths
from dstransformer.config import DecodingConfig
from dstransformer.data import EOS_ID
from dstransformer.data.packing import Packing
from dstransformer.data.plan import plan_batches
from dstransformer.decoding import beam_search
from dstransformer.model import DTYPES, Ensemble, Transformer

Batch = list[list[int]]


@dataclass(frozen=True)
class Decoding:
    """The measurements of a decoding case.

    Attributes:
        seconds: Time for all sentences, one value per round.
        sentences: Number of sentences.
        src_tokens: Source tokens, end-of-sentence tokens included.
        tgt_tokens: Target tokens of the translations, end-of-sentence tokens included.
        batches: Number of batches.
        limits: Limits of the device, measured in the same process.
        peak_bytes: Peak memory allocated for tensors.
        profile: The profile of one batch, if requested.
        profiled_seconds: Time of that batch without the profiler.
    """

    seconds: list[float]
    sentences: int
    src_tokens: int
    tgt_tokens: int
    batches: int
    limits: Limits
    peak_bytes: int
    profile: Profile | None
    profiled_seconds: float


def measure_decoding(case: Case, device: torch.device) -> Decoding:
    """Run a case.

    An untrained model hardly ever ends a sentence before the length limit. So the limit is the source length, which is
    about the length of a trained model's translations, and the search does a realistic amount of work.
    """
    config, work = case.load_config(), case.work
    limits = measure_limits(case.precision, work.product, device)
    torch.manual_seed(config.training.seed)
    model = Transformer(config.model, work.vocabulary, backend=config.training.attention_backend)
    model = model.to(device=device, dtype=DTYPES[case.precision]).eval()
    lengths, _ = sample_lengths(work.sentences, seed=1)
    pieces = np.split(draw_pieces(lengths, work.vocabulary, 1), np.cumsum(lengths)[:-1])
    batches = [
        [pieces[number].tolist() for number in batch] for batch in plan_batches(lengths.tolist(), work.batch_tokens)
    ]
    search = _Search(model, config.decoding, work.vocabulary, device)
    search.translate(batches[0])
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds, tokens = [], 0
    for _ in range(work.rounds):
        synchronize(device)
        began = time.perf_counter()
        tokens = sum(search.translate(batch) for batch in batches)
        seconds.append(time.perf_counter() - began)
    found, profiled_seconds = None, 0.0
    if case.profile:
        batch = batches[len(batches) // 2]
        began = time.perf_counter()
        search.translate(batch)
        profiled_seconds = time.perf_counter() - began
        trace = None if case.trace is None else Path(case.trace, case.name)
        found = make_profile(lambda: search.translate(batch), 1, device, trace)
    return Decoding(
        seconds=seconds,
        sentences=work.sentences,
        src_tokens=int(lengths.sum()) + work.sentences,
        tgt_tokens=tokens,
        batches=len(batches),
        limits=limits,
        peak_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0,
        profile=found,
        profiled_seconds=profiled_seconds,
    )


class _Search:
    def __init__(self, model: Transformer, settings: DecodingConfig, vocabulary: int, device: torch.device) -> None:
        self._model = model
        self._settings = settings
        self._vocabulary = vocabulary
        self._device = device

    def translate(self, sentences: Sequence[Sequence[int]]) -> int:
        """Translate sentences; the number of target tokens of the best hypotheses, ends included."""
        packed = torch.tensor([token for ids in sentences for token in (*ids, EOS_ID)], device=self._device)
        packing = Packing.from_lengths([len(ids) + 1 for ids in sentences]).to(self._device)
        found = beam_search(Ensemble([self._model]), packed, packing, self._settings, vocab_size=self._vocabulary)
        return sum(len(hypotheses[0].tokens) + 1 for hypotheses in found)
