"""Runs in the environment of eole: its log-probabilities and greedy translations of pairs.

``python eole_program.py MODEL REQUEST ANSWER``: REQUEST has ``pairs``, lists of source and target pieces, and
``lines``, texts. ANSWER gets ``log_probs``, for each pair those of all pieces at each position, and for each line its
translation and score.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def log_probabilities(model: str, pairs: list[tuple[list[str], list[str]]]) -> list[list[list[float]]]:
    """Those of every piece at each position of the targets and their ends."""
    import torch
    from eole.config.run import PredictConfig
    from eole.models.model import get_model_class

    config = PredictConfig(model_path=[model], src="", compute_dtype="fp32", world_size=1, gpu_ranks=[])
    built, vocabularies, _ = get_model_class(config.model).for_inference(config)
    built.eval()
    start = vocabularies["tgt"][vocabularies["decoder_start_token"]]
    found = []
    for source, target in pairs:
        src = torch.tensor([vocabularies["src"](source)])
        tgt = torch.tensor([[start, *vocabularies["tgt"](target), start]])  # the last one is not read
        with torch.no_grad():
            output = built(src, tgt, torch.tensor([len(source)]))
            found.append(built.generator(output.dec_out)[0].log_softmax(dim=-1).tolist())
    return found


def translations(model: str, lines: list[str]) -> list[tuple[str, float]]:
    """The greedy translation of each line, and its log-probability."""
    from eole.config.run import PredictConfig
    from eole.inference_engine import InferenceEnginePY

    config = PredictConfig(
        model_path=[model],
        src="",
        world_size=1,
        gpu_ranks=[],
        compute_dtype="fp32",
        beam_size=1,
        top_k=1,
        length_penalty="none",
        max_length=100,
        max_length_ratio=0.0,
        ban_unk_token=True,  # as in our search
        batch_type="sents",
        batch_size=50,
    )
    scores, _, found = InferenceEnginePY(config).infer_list(lines)
    return [(texts[0], float(values[0])) for texts, values in zip(found, scores, strict=True)]


def main(model: str, request: str, answer: str) -> None:
    """Answer a request."""
    asked: dict[str, Any] = json.loads(Path(request).read_text(encoding="utf-8"))
    found = {
        "log_probs": log_probabilities(model, asked["pairs"]),
        "translations": translations(model, asked["lines"]),
    }
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
