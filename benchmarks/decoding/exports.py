"""The exports of a bundle beside the bundle itself: equal outputs, BLEU, speed.

Every system translates the same text with all cores, our own before and after the others.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.lib.machine import count_cores
from dstransformer.decoding import Translator
from dstransformer.evaluation.bleu import score
from dstransformer.exchange.ct2 import export_ct2
from dstransformer.exchange.ct2_engine import open_ct2
from dstransformer.exchange.hf_export import TARGET, export_hf
from dstransformer.io.text import iter_lines

SMOKE_OPTIONS = ""

#: Sentences that ``generate`` translates at once.
HF_BATCH = 64


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="a trained model")
    parser.add_argument("src", help="sentences, plain or gzipped")
    parser.add_argument("ref", help="their translations")


def main(options: argparse.Namespace) -> None:
    sources, references = list(iter_lines(options.src)), list(iter_lines(options.ref))
    torch.set_num_threads(count_cores())
    ours = Translator.load(options.bundle, device="cpu")
    print(f"{len(sources):,} sentences, {torch.get_num_threads()} threads")
    expected = measure("dst translate, fp32", ours.translate, sources, references)
    with tempfile.TemporaryDirectory() as folder:
        for quantization in ("float32", "int8"):
            exported = Path(folder, quantization)
            export_ct2(options.bundle, exported, quantization=quantization)
            engine = open_ct2(exported)
            measure(f"--engine ct2, {quantization}", engine.translate, sources, references, expected)
        export_hf(options.bundle, Path(folder, "hf"))
        for name, alpha in (("", None), (", our formula on its beam", ours.settings.length_penalty)):
            generate = load_hf(Path(folder, "hf"), alpha)
            measure(f"transformers, generate{name}", generate, sources, references, expected)
    measure("dst translate, fp32, again", ours.translate, sources, references, expected)


def measure(
    name: str,
    translate: Callable[[Sequence[str]], list[str]],
    sources: Sequence[str],
    references: Sequence[str],
    expected: Sequence[str] | None = None,
) -> list[str]:
    translate(sources[:20])  # builds kernels and caches
    began = time.perf_counter()
    found = translate(sources)
    seconds = time.perf_counter() - began
    equal = "" if expected is None else f", {sum(map(str.__eq__, found, expected)):,} equal"
    bleu = score(found, references)[0].value
    print(f"{name}: {len(sources) / seconds:.1f} sentences per second, BLEU {bleu:.2f}{equal}", flush=True)
    return found


def load_hf(folder: Path, alpha: float | None) -> Callable[[Sequence[str]], list[str]]:
    """``generate`` as the exported ``generation_config.json`` sets it, in batches of similar length.

    With ``alpha``, our length penalty, the result is chosen among all hypotheses of the beam, as the card shows.
    """
    from transformers import AutoTokenizer, MarianMTModel

    model, tokenizer = MarianMTModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    has_two = (folder / TARGET).is_dir()
    decoder = AutoTokenizer.from_pretrained(folder, subfolder=TARGET) if has_two else tokenizer

    @torch.inference_mode()
    def translate(sources: Sequence[str]) -> list[str]:
        order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
        found = [""] * len(sources)
        for start in range(0, len(order), HF_BATCH):
            chosen = order[start : start + HF_BATCH]
            batch = tokenizer([sources[number] for number in chosen], return_tensors="pt", padding=True)
            outputs = model.generate(**batch) if alpha is None else generate_rescored(model, batch, alpha)
            texts = decoder.batch_decode(outputs, skip_special_tokens=True)
            for number, text in zip(chosen, texts, strict=True):
                found[number] = text
        return found

    return translate


def generate_rescored(model: Any, batch: Any, alpha: float) -> Tensor:
    settings = model.generation_config
    beam = settings.num_beams
    found = model.generate(**batch, num_return_sequences=beam, return_dict_in_generate=True, output_scores=True)
    lengths = (found.sequences > settings.eos_token_id).sum(1) + 1  # generate also fills with ends
    scores = found.sequences_scores * lengths**settings.length_penalty / ((5 + lengths) / 6) ** alpha
    best: Tensor = found.sequences[scores.view(-1, beam).argmax(1) + torch.arange(0, len(scores), beam)]
    return best
