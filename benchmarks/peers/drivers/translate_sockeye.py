"""Sockeye 3: its ``Translator``, as ``sockeye.translate`` uses it. Runs in the environment of that peer."""

from __future__ import annotations

import torch
import translation
from sockeye import inference
from sockeye.model import load_models

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}

#: ``b`` of its length penalty ``((b + length) / (b + 1))^alpha``; this is the paper's.
PENALTY_BETA = 5.0


def load(request: translation.Request) -> translation.Translate:
    device = torch.device("cpu")
    models, source_vocabularies, target_vocabularies = load_models(
        device=device, model_folders=[request.model], dtype=DTYPES[request.precision], inference_only=True
    )
    for model in models:
        model.eval()
    scorer = inference.CandidateScorer(request.length_penalty, PENALTY_BETA, brevity_penalty_weight=0.0)
    scorer.to(models[0].dtype)

    def build(batch: int) -> inference.Translator:
        return inference.Translator(
            device=device,
            ensemble_mode="linear",
            scorer=scorer,
            batch_size=batch,
            beam_size=request.beam_size,
            beam_search_stop="all",
            models=models,
            source_vocabs=source_vocabularies,
            target_vocabs=target_vocabularies,
            constant_length_ratio=-1.0,
        )

    translators: dict[int, inference.Translator] = {}

    def translate(sentences: translation.Sentences, batch: int) -> translation.Sentences:
        if batch not in translators:
            translators[batch] = build(batch)
        inputs = [inference.TranslatorInput(number, sentence) for number, sentence in enumerate(sentences)]
        return [output.tokens for output in translators[batch].translate(inputs, fill_up_batches=False)]

    return translate


if __name__ == "__main__":
    translation.main(load)
