"""Fine-tuning: a training that starts from the weights of a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dstransformer.config import ModelConfig
from dstransformer.data import Tokenizer
from dstransformer.errors import ConfigError, DataError, shown
from dstransformer.model import Bundle, open_bundle
from dstransformer.training.checkpoints.resume import ResumePoint

if TYPE_CHECKING:
    from torch import nn

#: Values of the section ``model`` that may differ from the bundle's, as the weights fit either way.
FREE_KEYS = ("dropout", "attention_dropout", "activation_dropout")

#: Weights with a row for each piece of the tokenizer.
EMBEDDINGS = ("embedding.weight", "src_embedding.weight", "softmax.weight", "output_bias")

#: For each piece of a new tokenizer that an old one has too, the new id and the old one.
Rows = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Pretrained:
    """The bundle that a training starts from.

    Attributes:
        bundle: The bundle.
        rows: The pieces that the two tokenizers share, of the target side.
        src_rows: Those of the source side; None for a joint vocabulary.
        pieces: Number of pieces of the new tokenizer, of both sides if they are separate.
        same_tokenizer: Whether it is the bundle's own.
    """

    bundle: Bundle
    rows: Rows
    src_rows: Rows | None
    pieces: int
    same_tokenizer: bool

    @property
    def record(self) -> dict[str, Any]:
        """How the provenance of the new model names the bundle."""
        return {
            "path": str(self.bundle.path.absolute()),
            "weights_sha256": self.bundle.weights_sha256,
            "step": self.bundle.provenance.get("step"),
            "same_tokenizer": self.same_tokenizer,
            "shared_pieces": self.shared,
        }

    @property
    def shared(self) -> int:
        """Number of pieces that the tokenizers share, of both sides if they are separate."""
        return len(self.rows) + len(self.src_rows or ())

    def describe(self) -> str:
        """One line for the start of a run."""
        rows = "the same tokenizer"
        if not self.same_tokenizer:
            rows = f"{self.shared:,} of {self.pieces:,} pieces are in its tokenizer and keep their embeddings"
        return f"{self.bundle.path}, {rows}"

    def fill(self, model: nn.Module) -> None:
        """Copy the weights into a new model, in place. Embeddings of pieces that the bundle lacks stay as they are.

        Raises:
            DataError: The weights cannot be read, or do not fit the bundle's own configuration.
        """
        import torch

        weights = self.bundle.load_weights()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if (stored := weights.get(name)) is None:
                    raise DataError(f"{self.bundle.path} has no weight {name}: copy it again")
                if name in EMBEDDINGS and not self.same_tokenizer:
                    rows = self.rows if name != "src_embedding.weight" or self.src_rows is None else self.src_rows
                    ids = torch.tensor(rows, dtype=torch.int64)
                    parameter[ids[:, 0].to(parameter.device)] = stored[ids[:, 1]].to(parameter)
                elif stored.shape == parameter.shape:
                    parameter.copy_(stored)
                else:
                    raise DataError(
                        f"{self.bundle.path}: {name} is {tuple(stored.shape)}, not {tuple(parameter.shape)}"
                    )


def open_pretrained(path: Path, model: ModelConfig, tokenizer: Tokenizer) -> Pretrained:
    """Open the bundle, or that of a checkpoint or run, that a training of this model and tokenizer is to start from.

    Raises:
        DataError: The path is not a bundle, or the bundle is damaged.
        ConfigError: Its architecture is another, or the tokenizers have no piece in common.
    """
    try:
        bundle = open_bundle(path)
    except DataError as error:
        raise DataError(f"--init {shown(path, quote=False, limit=200)}: {error}") from None
    theirs, ours = bundle.model.model_dump(), model.model_dump()
    different = [key for key in ours if key not in FREE_KEYS and ours[key] != theirs.get(key)]
    if different:
        settings = " ".join(f"model.{key}={theirs.get(key)}" for key in different)
        values = ", ".join(f"model.{key} is {theirs.get(key)} there and {ours[key]} here" for key in different)
        raise ConfigError(f"--init {path} has another architecture: {values}; give --set {settings}")
    old, new = bundle.tokenizer, tokenizer
    rows, pieces = _shared(old, new), new.vocab_size
    src_rows = None
    if not (old.is_joint and new.is_joint):
        src_rows, pieces = _shared(old.src, new.src), pieces + new.src.vocab_size
    same = old.identity == new.identity
    if not same and not (rows and (src_rows is None or src_rows)):
        raise ConfigError(f"--init {path}: its tokenizer and that of the corpus have no piece in common")
    return Pretrained(bundle, rows, src_rows, pieces, same)


def check_pretrained(resumed: ResumePoint, init: Path, pretrained: Pretrained | None) -> None:
    """Check that a run that resumes started from the bundle at ``init``; if that is gone, its path is compared.

    Raises:
        ConfigError: It started from random weights or from another bundle.
    """
    record: Mapping[str, Any] | None = resumed.provenance.get("parent")
    if record is not None and pretrained is not None and record["weights_sha256"] == pretrained.bundle.weights_sha256:
        return
    if record is not None and pretrained is None and Path(record["path"]).is_relative_to(init.absolute()):
        return
    began = "random weights" if record is None else f"another bundle ({record['path']})"
    raise ConfigError(
        f"--init {init}: this run started from {began} and resumes from {resumed.checkpoint.path}; leave out --init, "
        "or choose another --run"
    )


def _shared(old: Tokenizer, new: Tokenizer) -> Rows:
    there = {piece: number for number, piece in enumerate(old.pieces(range(old.vocab_size)))}
    pieces = enumerate(new.pieces(range(new.vocab_size)))
    return tuple((number, there[piece]) for number, piece in pieces if piece in there)
