"""A bundle: one trained model as a folder that needs neither DeepSpeed nor the cluster it was trained on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dstransformer.config import Config, read_config, write_config
from dstransformer.corpus import Tokenizer
from dstransformer.corpus.manifest import file_sha256
from dstransformer.errors import DataError
from dstransformer.model.attention import Backend
from dstransformer.model.transformer import Transformer

WEIGHTS, CONFIG, TOKENIZER, PROVENANCE = "model.safetensors", "config.yaml", "tokenizer.model", "provenance.json"


@dataclass(frozen=True)
class Bundle:
    """What a bundle's folder holds, without the weights themselves."""

    path: Path
    config: Config
    tokenizer: Tokenizer
    provenance: dict[str, Any]

    def load_weights(self) -> dict[str, Tensor]:
        """The fp32 weights by name.

        Raises:
            DataError: A weights file that does not match the hash in the provenance, or is not safetensors.
        """
        path = self.path / WEIGHTS
        expected = self.provenance.get("weights_sha256")
        if expected is not None and file_sha256(path) != expected:
            raise DataError(
                f"{path} does not match the hash in {PROVENANCE}: the file was damaged or replaced; restore it"
            )
        try:
            weights: dict[str, Tensor] = load_file(path)
            return weights
        except SafetensorError as error:
            raise DataError(f"{path} is not a safetensors file: {error}") from None

    def build_model(
        self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, backend: Backend = "auto"
    ) -> Transformer:
        """The model with its weights, in eval mode."""
        weights = self.load_weights()
        with torch.device("meta"):
            model = Transformer(self.config.model, self.tokenizer.vocab_size, self.config.loss.label_smoothing, backend)
        try:
            model.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            raise DataError(f"{self.path / WEIGHTS} does not fit {CONFIG}: {' '.join(str(error).split())}") from None
        return model.to(device=device, dtype=dtype).eval()


def open_bundle(path: str | Path) -> Bundle:
    """Open a bundle, or the bundle inside a checkpoint's or a run's folder.

    Raises:
        DataError: The folder is not a bundle, or lacks a part of one.
    """
    given = Path(path)
    folder = given / "bundle" if (given / "bundle").is_dir() else given
    if not folder.is_dir():
        raise DataError(f"{given} is not a folder: expected a bundle with {WEIGHTS}, {CONFIG} and {TOKENIZER}")
    missing = [name for name in (WEIGHTS, CONFIG, TOKENIZER, PROVENANCE) if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"{given} is not a bundle: it lacks {', '.join(missing)}; `dst average RUN --out BUNDLE` makes one"
        )
    try:
        provenance = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    except ValueError:
        raise DataError(f"{folder / PROVENANCE} is not readable JSON: copy the bundle again") from None
    return Bundle(folder, read_config(folder / CONFIG), Tokenizer.load(folder / TOKENIZER), provenance)


def save_bundle(
    folder: Path, weights: Mapping[str, Tensor], config: Config, tokenizer: Tokenizer, provenance: Mapping[str, Any]
) -> str:
    """Write a bundle into a folder that does not exist yet; returns the sha256 of its weights.

    Raises:
        OSError: The file system refuses.
    """
    folder.mkdir(parents=True)
    try:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)
    except SafetensorError as error:
        refusal = re.search(r"os error (\d+)", str(error))
        if refusal is None:
            raise
        number = int(refusal[1])
        raise OSError(number, os.strerror(number), str(folder / WEIGHTS)) from None
    digest = file_sha256(folder / WEIGHTS)
    write_config(config, folder / CONFIG)
    tokenizer.save(folder / TOKENIZER)
    text = json.dumps({**provenance, "weights_sha256": digest}, indent=2, ensure_ascii=False)
    (folder / PROVENANCE).write_text(text + "\n", encoding="utf-8")
    return digest
