"""The exports of a bundle beside the bundle itself: equal outputs, BLEU, speed.

    python -m benchmarks.decoding.exports BUNDLE SRC REF

Every system translates the same text with all cores, our own before and after the others.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dstransformer.decoding import Translator
from dstransformer.evaluation.bleu import score
from dstransformer.export.ct2 import export_ct2
from dstransformer.export.ct2_translator import CT2Translator
from dstransformer.export.hf import TARGET, export_hf
from dstransformer.io.text import iter_lines

#: Sentences that ``generate`` translates at once.
HF_BATCH = 64


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("bundle")
    options.add_argument("src")
    options.add_argument("ref")
    given = options.parse_args()
    sources, references = list(iter_lines(given.src)), list(iter_lines(given.ref))
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    ours = Translator.load(given.bundle, device="cpu")
    print(f"{len(sources):,} sentences, {torch.get_num_threads()} threads")
    expected = measure("dst translate, fp32", ours.translate, sources, references)
    with tempfile.TemporaryDirectory() as folder:
        for quantization in ("float32", "int8"):
            place = Path(folder, quantization)
            export_ct2(given.bundle, place, quantization=quantization)
            engine = CT2Translator.open(place)
            measure(f"--engine ct2, {quantization}", engine.translate, sources, references, expected)
        export_hf(given.bundle, Path(folder, "hf"))
        for rescore in (False, True):
            name = f"transformers, generate{', our formula on its beam' if rescore else ''}"
            measure(
                name,
                load_hf(Path(folder, "hf"), ours.settings.length_penalty if rescore else None),
                sources,
                references,
                expected,
            )
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
        order = sorted(range(len(sources)), key=lambda place: len(sources[place]))
        found = [""] * len(sources)
        for start in range(0, len(order), HF_BATCH):
            places = order[start : start + HF_BATCH]
            batch = tokenizer([sources[place] for place in places], return_tensors="pt", padding=True)
            outputs = model.generate(**batch) if alpha is None else generate_rescored(model, batch, alpha)
            texts = decoder.batch_decode(outputs, skip_special_tokens=True)
            for place, text in zip(places, texts, strict=True):
                found[place] = text
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


if __name__ == "__main__":
    main()
