"""Decoding: the product's beam search over sentences of the same text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu.cases import Case
from benchmarks.gpu.profiling import Profile, make_profile
from benchmarks.gpu.text import draw_text
from benchmarks.limits import DTYPES, Limits, measure_limits, synchronize
from dstransformer.config import DecodingConfig
from dstransformer.corpus import EOS_ID
from dstransformer.decoding.beam import beam_search
from dstransformer.decoding.translator import plan_batches
from dstransformer.model import Packing, Transformer

Batch = list[list[int]]


@dataclass(frozen=True)
class Decoding:
    """What a decoding case measured.

    Attributes:
        seconds: Of all sentences, a figure a round.
        sentences: How many there were.
        src_tokens: Of all of them, ends included.
        tgt_tokens: Of all translations, ends included.
        batches: In how many batches.
        limits: Of the device, measured in the same process.
        peak_bytes: Most memory that tensors took.
        profile: Of one batch, where one was asked for.
        profiled_seconds: What that batch takes without a profiler.
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

    Weights that nobody trained end hardly any sentence before its limit. So the limit is the length of the source,
    about what a trained model's translations have, and the search does the work of translating.
    """
    config, work = case.load_config(), case.work
    limits = measure_limits(case.precision, work.product, device)
    torch.manual_seed(config.training.seed)
    model = Transformer(config.model, work.vocabulary, backend=config.training.attention_backend)
    model = model.to(device=device, dtype=DTYPES[case.precision]).eval()
    text = draw_text(work.sentences, work.vocabulary)
    pieces = np.split(text.draw_pieces(text.src_lengths, 0), np.cumsum(text.src_lengths)[:-1])
    batches = [
        [pieces[number].tolist() for number in batch]
        for batch in plan_batches(text.src_lengths.tolist(), work.batch_tokens)
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
        src_tokens=int(text.src_lengths.sum()) + work.sentences,
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
        lengths = torch.tensor([0, *(len(ids) + 1 for ids in sentences)])
        packed = torch.tensor([token for ids in sentences for token in (*ids, EOS_ID)], device=self._device)
        packing = Packing(lengths.cumsum(0).int().to(self._device), int(lengths.max()), packed.numel())
        found = beam_search(self._model, packed, packing, self._settings, vocab_size=self._vocabulary)
        return sum(len(hypotheses[0].tokens) + 1 for hypotheses in found)
