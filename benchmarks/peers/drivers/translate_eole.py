"""eole: its inference engine, as ``eole predict`` uses it. Runs in the environment of that peer."""

from __future__ import annotations

import translation
from eole.config.run import PredictConfig
from eole.inference_engine import InferenceEnginePY


def load(request: translation.Request) -> translation.Translate:
    config = PredictConfig(
        model_path=request.model,
        src="",  # it is given lists
        world_size=1,
        gpu_ranks=[],
        compute_dtype=request.precision,
        beam_size=request.beam_size,
        length_penalty="wu",
        alpha=request.length_penalty,
        max_length_ratio=0.0,
        max_length=max(map(len, request.sentences())) + request.extra_tokens,
        batch_type="sents",
    )
    engine = InferenceEnginePY(config)

    def translate(sentences: translation.Sentences, batch: int) -> translation.Sentences:
        engine.config.batch_size = batch
        _, _, found = engine.infer_list([" ".join(sentence) for sentence in sentences])
        return [best.split() for best, *_ in found]

    return translate


if __name__ == "__main__":
    translation.main(load)
