"""Hugging Face: ``generate`` of ``MarianMTModel``. Runs in the environment of that peer."""

from __future__ import annotations

import torch
import translation
from run_huggingface import BOS, EOS, PAD, pad
from transformers import MarianMTModel

SPECIAL = (PAD, BOS, EOS)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def load(request: translation.Request) -> translation.Translate:
    vocabulary = request.vocabulary()
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    # As in training, plain products are the faster attention in bf16.
    attention = "eager" if request.precision == "bf16" else "sdpa"
    model = MarianMTModel.from_pretrained(
        request.model, dtype=DTYPES[request.precision], attn_implementation=attention
    ).eval()

    def translate_batch(batch: translation.Sentences) -> translation.Sentences:
        src = [[ids[piece] for piece in sentence] + [EOS] for sentence in batch]
        found = model.generate(
            input_ids=pad(src, PAD),
            attention_mask=pad([[1] * len(sentence) for sentence in src], 0),
            num_beams=request.beam_size,
            do_sample=False,
            length_penalty=request.length_penalty,
            max_new_tokens=max(map(len, src)) - 1 + request.extra_tokens,
        )
        return [[vocabulary[number] for number in row if number not in SPECIAL] for row in found.tolist()]

    def translate(sentences: translation.Sentences, batch: int) -> translation.Sentences:
        cut = (sentences[first : first + batch] for first in range(0, len(sentences), batch))
        return [found for part in cut for found in translate_batch(part)]

    return translate


if __name__ == "__main__":
    translation.main(load)
