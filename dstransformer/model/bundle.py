"""A bundle: one trained model as a folder that needs neither DeepSpeed nor the cluster it was trained on."""

from __future__ import annotations

import json
import os
import re
import stat
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
from dstransformer.errors import ConfigError, DataError, shown
from dstransformer.model.attention import Backend
from dstransformer.model.transformer import Transformer, shapes_only

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
            DataError: A weights file that cannot be read, does not match the hash in the provenance, or is not
                safetensors.
        """
        path = self.path / WEIGHTS
        _check_hash(path, self.provenance)
        try:
            weights: dict[str, Tensor] = load_file(path)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None
        except SafetensorError as error:
            raise DataError(f"{path} is not a safetensors file: {shown(error, quote=False)}") from None
        return weights

    def build_model(
        self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, backend: Backend = "auto"
    ) -> Transformer:
        """The model with its weights, in eval mode.

        Raises:
            DataError: See :meth:`load_weights`; or weights that are not those of the configuration.
        """
        weights = self.load_weights()
        with shapes_only():
            model = Transformer(self.config.model, self.tokenizer.vocab_size, self.config.loss.label_smoothing, backend)
        misfit = _misfit(model.state_dict(), weights)
        if misfit is not None:
            raise DataError(f"{self.path / WEIGHTS} does not fit {CONFIG} and {TOKENIZER}: {misfit}; copy it again")
        model.load_state_dict(weights, assign=True)
        return model.to(device=device, dtype=dtype).eval()


def _misfit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str | None:
    """What of the weights is not as expected, by the first few; None where all fit."""
    problems = [f"{name} is missing" for name in expected if name not in found]
    problems += [f"{name} is {_size(found[name])} and should be {_size(weight)}" for name, weight in expected.items()
                 if name in found and found[name].shape != weight.shape]  # fmt: skip
    problems += [f"{shown(name, quote=False)} is unknown" for name in found if name not in expected]
    if not problems:
        return None
    rest = f", and {len(problems) - 2} tensors more" if len(problems) > 2 else ""
    return ", ".join(problems[:2]) + rest


def _size(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))


def _check_hash(path: Path, provenance: Mapping[str, Any]) -> None:
    """Compare a file with what the provenance knows of it: in older bundles of the weights and the tokenizer only."""
    recorded = provenance.get("files")
    older = {WEIGHTS: "weights_sha256", TOKENIZER: "tokenizer_sha256"}
    expected = recorded.get(path.name) if isinstance(recorded, Mapping) else None
    if expected is None and path.name in older:
        expected = provenance.get(older[path.name])
    try:
        damaged = expected is not None and file_sha256(path) != expected
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    if damaged:
        raise DataError(f"{path} does not match its hash in {PROVENANCE}: it was damaged or replaced; restore it")


def _check_model(config: Config, provenance: Mapping[str, Any], path: Path) -> None:
    """The architecture must be the one of the weights; heads of another width fit them all the same.

    The rest of the configuration may be edited: how to decode, for example.
    """
    recorded = provenance.get("model")
    now = config.model.model_dump()
    for key, value in recorded.items() if isinstance(recorded, Mapping) else ():
        if now.get(key) != value:
            raise DataError(
                f"{path}: model.{key} is {shown(now.get(key))}, but the weights are of a model with {shown(value)} "
                f"({PROVENANCE}); restore it"
            )


def open_bundle(path: str | Path) -> Bundle:
    """Open a bundle, or the bundle inside a checkpoint's or a run's folder.

    Raises:
        DataError: The folder is not a bundle, or lacks a part of one.
    """
    given = Path(path)
    try:
        folder = given / "bundle" if (given / "bundle").is_dir() else given
        if not folder.is_dir():
            raise DataError(f"{given} is not a folder: expected a bundle with {WEIGHTS}, {CONFIG} and {TOKENIZER}")
        present = {path.name for path in folder.iterdir() if path.is_file()}
    except OSError as error:
        raise DataError(f"cannot read {given}: {error.strerror}") from None
    missing = [name for name in (WEIGHTS, CONFIG, TOKENIZER, PROVENANCE) if name not in present]
    if missing:
        raise DataError(
            f"{given} is not a bundle: it lacks {', '.join(missing)}; `dst average RUN --out BUNDLE` makes one"
        )
    provenance = _read_provenance(folder / PROVENANCE)
    try:
        config = read_config(folder / CONFIG)
    except ConfigError as error:
        raise ConfigError(f"{error}; if the file is damaged, restore it or copy the bundle again") from None
    _check_model(config, provenance, folder / CONFIG)
    _check_hash(folder / TOKENIZER, provenance)
    return Bundle(folder, config, Tokenizer.load(folder / TOKENIZER), provenance)


def _read_provenance(path: Path) -> dict[str, Any]:
    try:
        provenance = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path} is not readable JSON: copy the bundle again") from None
    if not isinstance(provenance, dict):
        raise DataError(f"{path} holds a {type(provenance).__name__}, not a JSON object: copy the bundle again")
    return provenance


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
    write_config(config, folder / CONFIG)
    tokenizer.save(folder / TOKENIZER)
    # Safetensors writes for the owner alone; whoever may read the others may read the weights.
    (folder / WEIGHTS).chmod(stat.S_IMODE((folder / CONFIG).stat().st_mode))
    files = {name: file_sha256(folder / name) for name in (WEIGHTS, CONFIG, TOKENIZER)}
    record = {**provenance, "weights_sha256": files[WEIGHTS], "files": files, "model": config.model.model_dump()}
    (folder / PROVENANCE).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return files[WEIGHTS]
