"""Loss, perplexity and BLEU of a held-out split, each rank computing its share on a plain copy of the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dstransformer.config import Config, Precision
from dstransformer.corpus import Split, Tokenizer
from dstransformer.data import build_batch, training_lengths
from dstransformer.decoding import Translator
from dstransformer.evaluation import score
from dstransformer.model import Transformer
from dstransformer.tracking import Evaluation, Sample
from dstransformer.training.world import World

Indices = npt.NDArray[np.int64]


def score_name(metric: str, sentences: int, whole: int) -> str:
    """What a score of the first sentences of a split is called; 0 sentences are all of them.

    A score of a part is no score of the whole: ``bleu_first_500`` beside ``bleu``.
    """
    return metric if sentences == 0 or sentences >= whole else f"{metric}_first_{sentences}"


class Validator:
    """Evaluates weights on a copy of the model that DeepSpeed does not know, so that every ZeRO stage does the same.

    Args:
        config: The experiment.
        tokenizer: Of the corpus.
        world: The processes.
        precision: The training's; on CUDA the copy has it too, a CPU computes in fp32.
    """

    def __init__(self, config: Config, tokenizer: Tokenizer, world: World, precision: Precision) -> None:
        halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
        dtype = halves.get(precision, torch.float32) if world.device.type == "cuda" else torch.float32
        self._config = config
        self._tokenizer = tokenizer
        self._world = world
        with torch.device("meta"):
            model = Transformer(
                config.model, tokenizer.vocab_size, config.loss.label_smoothing, config.training.attention_backend
            )
        self._model = model.to(dtype).to_empty(device=world.device).eval()
        self._translator = Translator(self._model, tokenizer, config.decoding)

    @torch.no_grad()
    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take over weights, by name."""
        ours = dict(self._model.named_parameters())
        for name, tensor in weights:
            ours[name].copy_(tensor)

    def evaluate(self, split: Split, sentences: int) -> Evaluation:
        """Evaluate the weights loaded last; the same result on every rank.

        Args:
            split: Of the corpus, with raw text.
            sentences: The first sentences of the split, translated for the scores; 0 for all of them.
        """
        loss, nll, tokens = self._world.sum(self._loss_sums(split)).tolist()
        count = min(sentences, len(split)) or len(split)
        bleu, chrf = (score_name(name, sentences, len(split)) for name in ("bleu", "chrf"))
        translations = self._translate(split, count)
        references = split.tgt_texts()[:count]
        scores = score(translations, references)
        shown = zip(split.src_texts(), references, translations, strict=False)
        return Evaluation(
            metrics={
                "loss": loss / tokens,
                "perplexity": math.exp(min(nll / tokens, 700.0)),
                bleu: scores.bleu.value,
                chrf: scores.chrf.value,
            },
            signatures={bleu: scores.bleu.signature, chrf: scores.chrf.signature},
            samples=[Sample(*sample) for sample, _ in zip(shown, range(self._config.validation.samples), strict=False)],
        )

    @torch.no_grad()
    def _loss_sums(self, split: Split) -> Tensor:
        sums = torch.zeros(3, dtype=torch.float64)
        for pairs in self._iter_batches(split):
            batch = build_batch(split, pairs).to(self._world.device)
            losses = self._model(*batch.arguments())
            sums += torch.tensor([float(losses.loss), float(losses.nll), batch.tgt_out.numel()], dtype=torch.float64)
        return sums

    def _iter_batches(self, split: Split) -> Iterator[Indices]:
        """This rank's share of a split in batches of ``decoding.batch_tokens`` target tokens, by length."""
        src_lengths, tgt_lengths = training_lengths(split)
        mine = np.lexsort((src_lengths, tgt_lengths))[self._world.rank :: self._world.world_size]
        if len(mine):
            filled = np.cumsum(tgt_lengths[mine], dtype=np.int64) // self._config.decoding.batch_tokens
            yield from np.split(mine, np.flatnonzero(np.diff(filled)) + 1)

    def _translate(self, split: Split, count: int) -> list[str]:
        """Translations of the first sentences, in order: of the raw text, as ``dst translate`` would."""
        sources = split.src_texts()[:count]
        shares = self._world.gather(self._translator.translate(sources[self._world.rank :: self._world.world_size]))
        return [shares[index % self._world.world_size][index // self._world.world_size] for index in range(count)]
