"""Scores translations with a learned metric, in an environment that has it; ``learned.py`` starts it.

It imports nothing of this package, and runs under any Python from 3.8 on. Its arguments are ``comet`` or ``metricx``,
and the model. Once that is loaded it prints a line of JSON: the ``name`` of its score, whether it ``uses_references``,
and the ``version`` of its package. Then it answers each line on stdin, an object with ``samples`` and ``batch_size``,
with the ``scores`` of the sentences; or with an ``error``.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from importlib.metadata import version
from typing import Any

#: MetricX reads this many tokens of a sentence with its translation and reference (Juraska et al., 2024).
METRICX_TOKENS = 1536

#: The token of mT5 whose logit is the score, <extra_id_10>, and the bounds of a score.
METRICX_TOKEN, METRICX_BOUNDS = 250089, (0.0, 25.0)


#: The names of COMET's scores without references, by the class of the model.
_REFERENCE_FREE = {"UnifiedMetric": "cometkiwi", "ReferencelessRegression": "cometqe"}


def main() -> None:
    """Load the model, then answer each line of stdin."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # libraries may print to stdout

        def answer(**values: Any) -> None:
            print(json.dumps(values), file=answers, flush=True)

        os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
        try:
            metric: Any = {"comet": Comet, "metricx": MetricX}[sys.argv[1]](sys.argv[2])
        except Exception as error:
            lacks = error.name if isinstance(error, ModuleNotFoundError) else None
            answer(error=f"{type(error).__name__}: {error}", lacks=lacks)
            return
        answer(**metric.facts)
        for line in sys.stdin:
            try:
                scores = metric.predict(**json.loads(line))
            except Exception as error:
                answer(error=f"{type(error).__name__}: {error}")
            else:
                answer(scores=scores)


class Comet:
    """A model of ``unbabel-comet``: COMET, COMETKiwi, XCOMET."""

    def __init__(self, checkpoint: str) -> None:
        for name in ("pytorch_lightning", "lightning"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._model = importlib.import_module("comet").load_from_checkpoint(checkpoint, local_files_only=True)
        segments = getattr(self._model.hparams, "input_segments", ())  # some can do with references and without
        uses_references = "ref" in segments or self._model.requires_references()
        self.facts = {
            "name": "comet" if uses_references else _REFERENCE_FREE.get(type(self._model).__name__, "comet"),
            "uses_references": uses_references,
            "version": f"unbabel-comet {version('unbabel-comet')}",
        }

    def predict(self, samples: Any, batch_size: int) -> Any:
        """The scores of samples."""
        gpus = int(importlib.import_module("torch").cuda.is_available())
        output = self._model.predict(samples, batch_size=batch_size, gpus=gpus, progress_bar=False)
        return list(map(float, output.scores))


class MetricX:
    """A model of MetricX-24: mT5 that reads source, translation and reference, and whose first logit is the score."""

    def __init__(self, folder: str) -> None:
        self._torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        transformers.utils.logging.set_verbosity_error()
        self._device = "cuda" if self._torch.cuda.is_available() else "cpu"
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = transformers.MT5ForConditionalGeneration.from_pretrained(folder, local_files_only=True)
        if model.config.vocab_size <= METRICX_TOKEN:
            raise ValueError(f"its vocabulary of {model.config.vocab_size} pieces is not mT5's")
        self._model = model.eval().to(self._device)
        self.facts = {
            "name": "metricx",
            "uses_references": True,
            "version": f"transformers {version('transformers')}",
        }

    def predict(self, samples: Any, batch_size: int) -> Any:
        """The scores of samples."""
        torch, scores = self._torch, []
        texts = [f"source: {one['src']} candidate: {one['mt']} reference: {one['ref']}" for one in samples]
        for first in range(0, len(texts), batch_size):
            batch = self._tokenizer(
                texts[first : first + batch_size], add_special_tokens=False, padding=True, truncation=True,
                max_length=METRICX_TOKENS - 1, return_tensors="pt",
            ).to(self._device)  # fmt: skip
            begin = torch.zeros((len(batch["input_ids"]), 1), dtype=torch.long, device=self._device)
            with torch.no_grad():
                logits = self._model(
                    input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], decoder_input_ids=begin
                ).logits
            scores += logits[:, 0, METRICX_TOKEN].float().clamp(*METRICX_BOUNDS).tolist()
        return scores


if __name__ == "__main__":
    main()
