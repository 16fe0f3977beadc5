"""How the outputs of a model are scored: the half of a :class:`dstransformer.data.form.Form` that needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Self

from dstransformer.config import DecodingConfig, ValidationConfig
from dstransformer.data import Manifest, Tokenizer
from dstransformer.decoding import TextDecoder, TorchEngine, Translator
from dstransformer.evaluation.bleu import bleu_tokenizer, score, tokenizer_note
from dstransformer.evaluation.result import Sample, Score
from dstransformer.model import Transformer


@dataclass(frozen=True)
class Task:
    """Translating, scored by BLEU and chrF. Other tasks derive from it, and say what is different.

    Attributes:
        metric: The score that ranks checkpoints: ``bleu``, ``chrf``, ``loss``, or another.
        tokenizers: Sacrebleu's tokenizer for BLEU, by the name of the direction; empty where there is one.
        notes: What to know about the choice of tokenizers.
        example: An output that can be scored, whatever the model.
    """

    metric: str = "bleu"
    tokenizers: Mapping[str, str] = field(default_factory=lambda: {"": "13a"})
    notes: tuple[str, ...] = ()
    example: str = "."

    @classmethod
    def build(cls, manifest: Manifest, config: ValidationConfig) -> Self:
        """What is learned from a corpus, and how it is scored.

        Raises:
            ConfigError: A tokenizer of BLEU is not installed.
        """
        targets = {direction.name: direction.tgt_lang for direction in manifest.directions}
        targets[""] = next(iter(targets.values()), manifest.tgt_lang)
        notes = dict.fromkeys(tokenizer_note(code, config.tokenize) for code in targets.values())
        return cls(
            config.metric,
            {name: bleu_tokenizer(code, config.tokenize) for name, code in targets.items()},
            tuple(note for note in notes if note),
        )

    def decoder(self, model: Transformer, tokenizer: Tokenizer, settings: DecodingConfig) -> TextDecoder:
        """What turns source sentences into outputs."""
        return Translator(TorchEngine([model], tokenizer.vocab_size), tokenizer, settings)

    def score(self, outputs: Sequence[str], references: Sequence[str], direction: str = "") -> tuple[Score, ...]:
        """The scores of outputs in one direction.

        Raises:
            DataError: There are no sentences, or the numbers of outputs and references differ.
        """
        return score(outputs, references, self.tokenizers[direction])

    def draw(self, samples: Sequence[Sample]) -> str:
        """Samples as a text; empty if a table of their lines shows them well."""
        del samples
        return ""


def build_task(manifest: Manifest, config: ValidationConfig) -> Task:
    """The task of a corpus; see :meth:`Task.build`."""
    kind: type[Task] = resolve_name(manifest.form.task)
    return kind.build(manifest, config)
