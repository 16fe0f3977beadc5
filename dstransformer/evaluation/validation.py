"""Loss, perplexity and scores on a held-out split. Each rank evaluates its share on a plain copy of the model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dstransformer.config import Config, Precision
from dstransformer.data import Corpus, Split, Tokenizer
from dstransformer.data.packing import pack_pairs
from dstransformer.data.plan import plan_batches
from dstransformer.data.windows import training_lengths
from dstransformer.distributed.supervision.session import Session
from dstransformer.errors import DataError
from dstransformer.evaluation.bleu import compound_split_bleu
from dstransformer.evaluation.result import Evaluation, Sample, Score
from dstransformer.evaluation.task import Task
from dstransformer.evaluation.testset import TestSet
from dstransformer.io.languages import language as known
from dstransformer.model import DTYPES, Bundle, Transformer
from dstransformer.model.cost import meta_device
from dstransformer.model.loss import Objective
from dstransformer.model.ops import int8_values

#: To call with a number that is done, and that of all.
Show = Callable[[int, int], None]

#: Scores the outputs of a direction against their references.
Scorer = Callable[[Sequence[str], Sequence[str], str], tuple[Score, ...]]


def score_name(metric: str, sentences: int, total: int) -> str:
    """The name of a score over the first ``sentences`` of a split with ``total`` sentences; 0 means all.

    A score over part of a split is named separately: ``bleu_first_500`` instead of ``bleu``.
    """
    return metric if sentences == 0 or sentences >= total else f"{metric}_first_{sentences}"


def add_paper_bleu(evaluation: Evaluation, split: Split, language: str) -> Evaluation:
    """Add BLEU as in the paper's tables to an evaluation of a split by :class:`Validator`, if the target is German.

    See :func:`compound_split_bleu`. Other languages get no second score: how the authors computed their French score is
    not published.
    """
    is_german = (known(language).tag or "").partition("-")[0] == "de"  # or deu, de_AT
    if not is_german or evaluation.paper_bleu is not None or split.directions:
        return evaluation
    count = evaluation.sentences
    bleu = compound_split_bleu(evaluation.translations, split.tgt_texts()[:count], language)
    bleu = replace(bleu, name=score_name(bleu.name, count, len(split)))
    return replace(evaluation, scores=(*evaluation.scores, bleu))


class Validator:
    """Evaluates weights on a copy of the model outside DeepSpeed, in the same way for all ZeRO stages.

    With ``training.int8_weights`` its matrices have the values of an int8 export, for which the run trains.

    Args:
        config: The configuration.
        tokenizer: The tokenizer of the corpus.
        session: The process group, whose requests to stop end an evaluation.
        precision: The training precision, in which a GPU evaluates. A CPU evaluates in fp32.
        task: What the model learns.
    """

    def __init__(
        self, config: Config, tokenizer: Tokenizer, session: Session, precision: Precision, task: Task
    ) -> None:
        world = session.world
        dtype = DTYPES[precision] if world.device.type == "cuda" else torch.float32
        self._config = config
        self._world = world
        self._until_stopped = session.until_stopped
        with meta_device():
            backend, src_vocab_size = config.training.attention_backend, tokenizer.src.vocab_size
            model = Transformer(config.model, tokenizer.vocab_size, backend, src_vocab_size=src_vocab_size)
        self._model = model.to(dtype).to_empty(device=world.device).eval()
        self._objective = Objective(self._model, config.loss.label_smoothing)
        self._int8_names = self._model.int8_names() if config.training.int8_weights else frozenset()
        self._task = task
        self._loss_signature = f"smoothing:{config.loss.label_smoothing:g}|pieces:{tokenizer.sha256[:16]}"
        self._translator = task.decoder(self._model, tokenizer, config.decoding)

    @torch.no_grad()
    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy weights into the model, by name."""
        parameters = dict(self._model.named_parameters())
        for name, tensor in weights:
            parameters[name].copy_(int8_values(tensor) if name in self._int8_names else tensor)

    def score_name(self, split: Split, sentences: int) -> str:
        """The name of the score that ranks checkpoints, over the first ``sentences`` of a split; 0 means all."""
        if self._task.metric == "loss":  # always of the whole split
            return "loss"
        return score_name(self._task.metric, sentences, largest_direction(split))

    def signature(self, split: Split) -> str:
        """The signature of that score."""
        if self._task.metric == "loss":
            return self._loss_signature
        rows = {name: [0] for name in covered_rows(split, 1)}
        examples = [self._task.example] * len(rows)
        scores = score_directions(self._task.score, rows, examples, examples)
        return Evaluation(scores, ranked_by=self._task.metric).main.signature

    def evaluate(self, split: Split, sentences: int, show: Show | None = None) -> Evaluation:
        """Evaluate the weights loaded last. Collective; all ranks return the same result.

        Args:
            split: A split of the corpus, with raw text.
            sentences: How many sentences of each direction, from the first, to translate for the scores; 0 means all.
            show: Called with the number of sentences translated so far, and that of all.
        """
        show = show or (lambda *_: None)
        rows = covered_rows(split, sentences)
        show(0, sum(map(len, rows.values())))
        loss, nll, tokens = self.loss_sums(split).tolist()
        sources, references = (
            [texts[row] for own in rows.values() for row in own] for texts in (split.src_texts(), split.tgt_texts())
        )
        began = time.perf_counter()
        translations = self._translate(sources, show)
        seconds = time.perf_counter() - began
        samples = (Sample(sources[place], references[place], translations[place]) for place in interleaved(rows))
        first_samples = tuple(islice(samples, self._config.validation.samples))
        scores = self._until_stopped(lambda: score_directions(self._task.score, rows, translations, references))
        return Evaluation(
            scores=tuple(
                replace(found, name=score_name(found.name, sentences, largest_direction(split))) for found in scores
            ),
            sentences=len(sources),
            seconds=seconds,
            loss=loss / tokens,
            perplexity=math.exp(min(nll / tokens, 700.0)),
            samples=first_samples,
            drawing=self._task.draw(first_samples),
            digest=split.text_digest,
            translations=tuple(translations),
            ranked_by=self._task.metric,
            loss_signature=self._loss_signature,
        )

    def loss_sums(self, split: Split, rows: Sequence[int] | None = None) -> Tensor:
        """Sums over a split, or rows of it: label-smoothed loss, loss without smoothing, target tokens. Collective.

        Returns:
            float64, shape ``(3,)``.
        """
        return self._world.all_reduce(self._until_stopped(lambda: self._share_of_sums(split, rows)))

    @torch.no_grad()
    def _share_of_sums(self, split: Split, rows: Sequence[int] | None) -> Tensor:
        """The sums over this rank's share, in batches of similar target length."""
        src_lengths, tgt_lengths = training_lengths(split)
        order = np.lexsort((src_lengths, tgt_lengths))
        if rows is not None:
            order = order[np.isin(order, rows)]
        share = order[self._world.rank :: self._world.world_size]
        sums = torch.zeros(3, dtype=torch.float64)
        # The lengths include EOS, which the plan counts again; without it, empty targets would be left out.
        for pairs in plan_batches(tgt_lengths[share].tolist(), self._config.decoding.batch_tokens):
            batch = pack_pairs(*split.gather(share[pairs])).to(self._world.device)
            loss, terms = self._objective(*batch)
            sums += torch.tensor([float(loss), float(terms["nll"]), batch.tgt_out.numel()], dtype=torch.float64)
        return sums

    def _translate(self, sources: Sequence[str], show: Show) -> list[str]:
        """Translate raw text as ``dst translate`` does. Collective."""
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done = min(done + count * self._world.world_size, len(sources))  # the others get on as fast
            show(done, len(sources))

        share = sources[self._world.rank :: self._world.world_size]
        shares = self._world.gather(self._until_stopped(lambda: self._translator.translate(share, advance)))
        return [
            shares[index % self._world.world_size][index // self._world.world_size] for index in range(len(sources))
        ]


# Splits of several directions


def covered_rows(split: Split, sentences: int) -> dict[str, range]:
    """The rows of each direction that are translated, its first ``sentences`` (0: all), by name.

    A split of one direction has one entry, whose name is empty.
    """
    rows = split.directions or {"": range(len(split))}
    return {name: own[:sentences] if sentences else own for name, own in rows.items()}


def largest_direction(split: Split) -> int:
    """The number of pairs of the largest direction; of a split of one direction, all pairs."""
    return max(map(len, split.directions.values()), default=len(split))


def score_directions(
    scorer: Scorer, rows: Mapping[str, Sequence[int]], outputs: Sequence[str], references: Sequence[str]
) -> tuple[Score, ...]:
    """Score the outputs of each direction.

    Args:
        scorer: Scores the outputs of one direction.
        rows: The rows of each direction, see :func:`covered_rows`.
        outputs: The outputs of these rows, one direction after the other.
        references: Their references.

    Returns:
        The scores, if there is one direction. Otherwise their means over the directions, in which each counts the same,
        then those of each direction: ``bleu``, ``chrf``, ``bleu_en-de``, ``chrf_en-de``, ``bleu_de-en`` …
    """
    scores_of: dict[str, tuple[Score, ...]] = {}
    begin = 0
    for name, own in rows.items():
        end = begin + len(own)
        scores_of[name] = scorer(outputs[begin:end], references[begin:end], name)
        begin = end
    if len(scores_of) == 1:
        return next(iter(scores_of.values()))
    means = []
    for same in zip(*scores_of.values(), strict=True):
        signatures = " + ".join(dict.fromkeys(score.signature for score in same))  # one if all are computed alike
        mean = sum(score.value for score in same) / len(same)
        means.append(Score(same[0].name, mean, f"mean:{len(same)}|{signatures}"))
    own_scores = [replace(score, name=f"{score.name}_{name}") for name, scores in scores_of.items() for score in scores]
    return (*means, *own_scores)


def interleaved(rows: Mapping[str, range]) -> list[int]:
    """The positions of outputs, in turn of each direction; see :func:`score_directions` for their order."""
    positions = iter(range(sum(map(len, rows.values()))))
    directions = [list(islice(positions, len(own))) for own in rows.values()]
    return [position for turn in zip_longest(*directions) for position in turn if position is not None]


def validation_sets(bundle: Bundle) -> list[TestSet]:
    """The validation split of the corpus that a model was trained on; of several directions, a set for each.

    Raises:
        DataError: The corpus is not where the provenance says, or has no text.
    """
    recorded = bundle.provenance.get("corpus")
    if not isinstance(recorded, str) or not Path(recorded).is_dir():
        raise DataError(
            f"the corpus of {bundle.path} no longer exists ({recorded}): name a test set with --src and --ref"
        )
    split = Corpus.open(recorded, verify=False).split("validation")
    sources, references = split.src_texts(), split.tgt_texts()
    return [
        TestSet(f"validation {name}".rstrip(), tuple(sources[rows.start : rows.stop]),
                tuple(references[rows.start : rows.stop]), recorded, recorded)
        for name, rows in covered_rows(split, 0).items()
    ]  # fmt: skip
