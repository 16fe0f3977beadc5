"""A prediction of beam search: operators counted on a faked device, bytes and operations by formula."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gpu.counts import VOCABULARY
from benchmarks.gpu.roofline import Operator, Work, predict
from benchmarks.gpu.sheets import Sheet, UpdateTime
from benchmarks.gpu.text import MEAN_PIECES
from dstransformer.config import Config, load_config
from dstransformer.decoding.beam import CHECK_STEPS

#: Operators of a layer, of the rest of a step, and of a look at what is done, as ``tests/unit/decoding`` counts them.
_LAYER_OPERATORS, _STEP_OPERATORS, _LOOK_OPERATORS = 17, 34, 5

#: Bytes per logit, which a kernel reads once.
_LOGIT_BYTES = 2

#: Uses of the keys and values of earlier positions: read by attention; read and written when hypotheses change places.
_CACHE_USES = 3


@dataclass(frozen=True)
class Search:
    """A predicted step of beam search, and the target tokens a second that follow."""

    model: str
    sentences: int
    work: Work
    time: UpdateTime

    @property
    def tokens_per_second(self) -> float:
        """Each step computes a token of each sentence."""
        return self.sentences / self.time.total


def predict_search(model: str, sheet: Sheet, batch_tokens: int) -> Search:
    """Predict a step in the middle of a search over batches of so many source tokens."""
    config = load_config(model)
    length = MEAN_PIECES + 1
    sentences = round(batch_tokens / length)
    hypotheses = sentences * config.decoding.beam_size
    weights = _decoder_weights(config)
    heads = config.model.num_heads * (config.model.d_k + config.model.d_v)
    earlier = hypotheses * length / 2 * heads * config.model.decoder_depth * 2 * _CACHE_USES
    memory = sentences * length * heads * config.model.decoder_depth * 2
    logits = hypotheses * VOCABULARY * _LOGIT_BYTES
    launches = count_step(model)
    operators = [
        Operator("products", "bfloat16", 1, 2 * weights, 2 * weights * hypotheses),
        Operator("caches", "bfloat16", 1, round(earlier + memory), 0),
        Operator("best_pieces", "float32", 1, logits, 0),
    ]
    work = Work(operators, 1 / CHECK_STEPS, launches=round(launches))
    return Search(model, sentences, work, predict(work, sheet))


def count_step(model: str) -> float:
    """Operators of a step, as counted on a faked device."""
    return _LAYER_OPERATORS * load_config(model).model.decoder_depth + _STEP_OPERATORS + _LOOK_OPERATORS / CHECK_STEPS


def _decoder_weights(config: Config) -> int:
    """Weights that a step multiplies with: those of the decoder, without the projections of the memory."""
    model = config.model
    keys, values = model.num_heads * model.d_k, model.num_heads * model.d_v
    layer = model.d_model * (2 * keys + values + values + keys + values + 2 * model.d_ff)
    return model.decoder_depth * layer + model.embedding_rows(VOCABULARY) * model.d_model
