"""A bundle: a trained model in a folder, independent of DeepSpeed and of the cluster it was trained on.

``config.yaml`` holds what using the model takes: its architecture, languages and search settings. ``provenance.json``
records how it was trained, with the complete configuration; using the model does not need it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError

from dstransformer.config import Config, DecodingConfig, ModelConfig, complete_config, read_yaml
from dstransformer.config.loading import LEFT
from dstransformer.data import Direction, Tokenizer
from dstransformer.data.form import Form, read_form
from dstransformer.data.tokenizer import SRC_TOKENIZER_NAME as SRC_TOKENIZER
from dstransformer.data.tokenizer import TOKENIZER_NAME as TOKENIZER
from dstransformer.errors import ConfigError, DataError, UnreadableError, shown
from dstransformer.io.files import file_sha256, read_error
from dstransformer.io.json_text import read_record
from dstransformer.io.products import BUNDLE_FILES, check_kind, complete_checkpoints, kind_of, write_marker

if TYPE_CHECKING:  # what opening a bundle does not need; importing it takes seconds
    import torch
    from torch import Tensor

    from dstransformer.model.ops import Backend
    from dstransformer.model.transformer import Transformer

logger = logging.getLogger(__name__)

WEIGHTS, CONFIG, PROVENANCE = "model.safetensors", "config.yaml", "provenance.json"

_DAMAGED = "if the file is damaged, restore it or copy the bundle again"

#: What to do instead of giving another kind of folder as a bundle.
_ADVICE = {
    "export": "name the bundle that it was exported from",
    "corpus": "name a bundle that was trained on it, such as RUN/bundle",
    "run": "wait for its first checkpoint (checkpoint.every_updates); if it was stopped, give its `dst train` command "
    "again",
}


@dataclass(frozen=True)
class Bundle:
    """An open bundle; the weights are still in their file.

    Attributes:
        path: Its folder.
        model: The architecture.
        decoding: The default search settings.
        tokenizer: The tokenizer.
        src_lang: Code of the source language, None if it is not recorded.
        tgt_lang: Code of the target language, None if it is not recorded.
        form: How the model's outputs are written: as text, if it translates.
        directions: The directions that it translates in, with their tags; empty if there is one.
        provenance: The record of how the model was trained.
    """

    path: Path
    model: ModelConfig
    decoding: DecodingConfig
    tokenizer: Tokenizer
    src_lang: str | None
    tgt_lang: str | None
    form: Form
    directions: tuple[Direction, ...]
    provenance: dict[str, Any]

    def training_config(self) -> Config:
        """The configuration the model was trained with; keys that an older version lacked have their default.

        Raises:
            DataError: The provenance has no configuration.
        """
        recorded = self.provenance.get("config")
        if not isinstance(recorded, Mapping):
            raise DataError(f"{self.path / PROVENANCE} does not hold the configuration of the training: copy it again")
        return complete_config(recorded, str(self.path / PROVENANCE))

    def check_translates(self, advice: str) -> None:
        """Refuse a model that does something else than translating.

        Raises:
            DataError: It does; the message ends with the advice.
        """
        if self.form.model:
            raise DataError(f"{self.path} is {self.form.model}: {advice}")

    @property
    def is_guided(self) -> bool:
        """Whether an attention head was trained on alignments; False if the training is not recorded."""
        return isinstance(self.provenance.get("config"), Mapping) and self.training_config().loss.guided_alignment > 0

    @property
    def weights_sha256(self) -> str:
        """The recorded hash of the weights."""
        return str(self.provenance["files"][WEIGHTS])

    def verify_weights(self) -> None:
        """Compare the weights file with its hash. Opening a bundle compares the other files.

        Raises:
            DataError: The weights file cannot be read, or does not match its hash.
        """
        _check_hash(self.path / WEIGHTS, self.provenance)

    def verify_files(self) -> None:
        """Compare the weights and ``config.yaml`` with their hashes. Opening a bundle compares the tokenizer.

        Raises:
            DataError: See :meth:`verify_weights`; or ``config.yaml`` was edited, which using the bundle allows for the
                search settings.
        """
        self.verify_weights()
        recorded = self.provenance.get("files", {}).get(CONFIG)
        if recorded is not None and file_sha256(self.path / CONFIG) != recorded:
            raise DataError(
                f"{self.path / CONFIG} was changed after the training: its search settings may be, but it is not the "
                "file of the provenance; sign the bundle as it is, and verify with --key"
            )

    def load_weights(self) -> dict[str, Tensor]:
        """The fp32 weights by name.

        Raises:
            DataError: The weights file cannot be read, does not match its hash in the provenance, or is not in the
                safetensors format.
        """
        from safetensors.torch import load_file

        self.verify_weights()
        path = self.path / WEIGHTS
        try:
            weights: dict[str, Tensor] = load_file(path)
        except OSError as error:
            raise read_error(path, error) from None
        except SafetensorError as error:
            raise DataError(f"{path} is not a safetensors file: {shown(error, quote=False)}") from None
        except RuntimeError as error:  # PyTorch maps the file, which may have been deleted since it was opened
            raise UnreadableError(f"cannot read {path}: {shown(error, quote=False)}") from None
        return weights

    def build_model(
        self, device: torch.device | str = "cpu", dtype: torch.dtype | None = None, backend: Backend = "auto"
    ) -> Transformer:
        """The model with its weights, in eval mode and by default in fp32.

        Raises:
            DataError: See :meth:`load_weights`; or the weights do not fit the configuration.
        """
        from torch import float32

        weights = self.load_weights()
        model = weightless_model(self.model, self.tokenizer, backend)
        if (misfit := describe_misfit(model, weights)) is not None:
            raise DataError(f"{self.path / WEIGHTS} does not fit {CONFIG} and {TOKENIZER}: {misfit}; copy it again")
        model.load_state_dict(weights, assign=True)
        return model.to(device=device, dtype=dtype or float32).eval()


def weightless_model(config: ModelConfig, tokenizer: Tokenizer, backend: Backend = "auto") -> Transformer:
    """A model whose parameters have names and shapes, but no values yet."""
    from dstransformer.model.cost import meta_device
    from dstransformer.model.transformer import Transformer

    with meta_device():
        return Transformer(config, tokenizer.vocab_size, backend=backend, src_vocab_size=tokenizer.src.vocab_size)


def describe_misfit(model: Transformer, weights: Mapping[str, Tensor]) -> str | None:
    """How weights differ from those of a model, the first two differences; None if they fit it."""
    expected = model.state_dict()
    problems = [f"{name} is missing" for name in expected if name not in weights]
    for name, weight in expected.items():
        if name in weights and weights[name].shape != weight.shape:
            size, expected_size = (" x ".join(map(str, tensor.shape)) for tensor in (weights[name], weight))
            problems.append(f"{name} is {size} and should be {expected_size}")
    problems += [f"{shown(name, quote=False)} is unknown" for name in weights if name not in expected]
    if not problems:
        return None
    rest = f", and {len(problems) - 2} more" if len(problems) > 2 else ""
    return ", ".join(problems[:2]) + rest


def _check_hash(path: Path, provenance: Mapping[str, Any]) -> None:
    """Compare a file with its hash in the provenance."""
    try:
        damaged = file_sha256(path) != provenance["files"].get(path.name)
    except OSError as error:
        raise read_error(path, error) from None
    if damaged:
        raise DataError(f"{path} does not match its hash in {PROVENANCE}: it was damaged or replaced; restore it")


def _check_model(model: ModelConfig, provenance: Mapping[str, Any], path: Path) -> None:
    """Compare the architecture with the one the weights were trained as: heads of another width would fit them too.

    The search settings may be edited.
    """
    training = provenance.get("config")
    recorded = training.get("model") if isinstance(training, Mapping) else None
    now = {**{key: value for section, key, value in LEFT if section == "model"}, **model.model_dump()}
    for key, value in recorded.items() if isinstance(recorded, dict) else ():
        if now.get(key) != value:
            raise DataError(
                f"{path}: model.{shown(key, quote=False)} is {shown(now.get(key))}, but the weights belong to a model "
                f"with {shown(value)} ({PROVENANCE}); restore it"
            )


def open_bundle(path: str | Path | Bundle) -> Bundle:
    """Open a bundle, or the bundle in the folder of a checkpoint or a run: the final one, else the newest.

    One that is open is returned as it is.

    Raises:
        DataError: The folder is not a bundle, is incomplete or damaged, or cannot be read (``UnreadableError`` if
            reading it again may work).
        ConfigError: Its configuration is not valid.
    """
    if isinstance(path, Bundle):
        return path
    try:
        folder = _bundle_in(Path(path))
        missing = [name for name in BUNDLE_FILES if not (folder / name).is_file()]
    except OSError as error:
        raise read_error(Path(path), error) from None
    usual = "name a run, a checkpoint or a bundle; `dst average RUN --out BUNDLE` makes one"
    check_kind(folder, "bundle", _ADVICE.get(kind_of(folder) or "", usual))
    if missing:
        raise DataError(f"{folder} lacks {', '.join(missing)}: restore it, or copy the bundle again")
    provenance = read_record(folder / PROVENANCE, dict, nan=True, advice="copy the bundle again")
    content = _read_config(folder / CONFIG)
    if not isinstance(provenance.get("files"), Mapping):
        raise DataError(f"{folder / PROVENANCE} is damaged (it has no hashes): restore it or copy the bundle again")
    languages = [content.pop(name, None) for name in ("src_lang", "tgt_lang")]
    try:
        form = read_form({"trees": content.pop("trees", None)})
    except ValueError as error:
        raise DataError(f"{folder / CONFIG}: {error}; {_DAMAGED}") from None
    directions = read_directions(content.pop("directions", None), folder / CONFIG)
    joint = content.pop("joint_vocabulary", True)
    if not isinstance(joint, bool):
        raise DataError(f"{folder / CONFIG}: joint_vocabulary is {shown(joint)}, not true or false; {_DAMAGED}")
    try:  # what a bundle does not store has the values of base.yaml
        config = complete_config(content, str(folder / CONFIG))
    except ConfigError as error:
        raise ConfigError(f"{error}; {_DAMAGED}") from None
    _check_model(config.model, provenance, folder / CONFIG)
    src_lang, tgt_lang = (code if isinstance(code, str) else None for code in languages)
    tokenizer = _open_tokenizer(folder, provenance, config.model, joint=joint)
    return Bundle(folder, config.model, config.decoding, tokenizer, src_lang, tgt_lang, form, directions, provenance)


def _bundle_in(folder: Path) -> Path:
    """The bundle in a folder, if there is one; in a run without a final one that of the newest checkpoint."""
    if (folder / "bundle").is_dir():
        return folder / "bundle"
    checkpoints = complete_checkpoints(folder / "checkpoints")
    if not checkpoints:
        return folder
    logger.warning("%s has no final bundle yet: this is its newest checkpoint, %s", folder, checkpoints[-1].name)
    return checkpoints[-1] / "bundle"


def _open_tokenizer(folder: Path, provenance: Mapping[str, Any], model: ModelConfig, *, joint: bool) -> Tokenizer:
    src = None
    if not joint:
        if not (folder / SRC_TOKENIZER).is_file():
            raise DataError(f"{folder} lacks {SRC_TOKENIZER}: restore it, or copy the bundle again")
        _check_hash(folder / SRC_TOKENIZER, provenance)
        src = Tokenizer.load(folder / SRC_TOKENIZER)
    _check_hash(folder / TOKENIZER, provenance)
    tokenizer = Tokenizer.load(folder / TOKENIZER, src)
    if model.tie_embeddings == "all" and not tokenizer.shares_ids:
        raise DataError(
            f"{folder / CONFIG}: joint_vocabulary is false, but model.tie_embeddings is all: one matrix cannot be for "
            f"two vocabularies; {_DAMAGED}"
        )
    return tokenizer


def read_directions(stored: object, path: Path) -> tuple[Direction, ...]:
    """The directions that a file has in its key ``directions``; none without it.

    Raises:
        DataError: It is something else. The message names the file.
    """
    try:
        return TypeAdapter(tuple[Direction, ...]).validate_python(stored or ())
    except ValidationError:
        raise DataError(f"{path}: directions is {shown(stored)}, not src_lang, tgt_lang and tag; {_DAMAGED}") from None


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return read_yaml(path)
    except ConfigError as error:
        if isinstance(reason := error.__context__, OSError):
            raise read_error(path, reason) from None
        raise ConfigError(f"{error}; {_DAMAGED}") from None


def save_bundle(
    folder: Path, weights: Mapping[str, Tensor], config: Config, tokenizer: Tokenizer, provenance: Mapping[str, Any]
) -> str:
    """Write a bundle into a new folder; returns the SHA-256 of its weights.

    Args:
        folder: Must not exist. Its parent must: the disk of a run may be gone by now.
        weights: In fp32, by name.
        config: The configuration of the training.
        tokenizer: The tokenizer.
        provenance: The record of the training; the configuration and the hashes of the files are added.

    Raises:
        OSError: The folder exists, its parent does not, or it cannot be written.
    """
    folder.mkdir()
    save_weights(folder / WEIGHTS, weights)
    stored = {
        "src_lang": provenance.get("src_lang"),
        "tgt_lang": provenance.get("tgt_lang"),
        "trees": provenance.get("trees"),
        "joint_vocabulary": tokenizer.is_joint,
        "directions": provenance.get("directions") or [],
        "model": config.model.model_dump(),
        "decoding": config.decoding.model_dump(),
    }
    (folder / CONFIG).write_text(yaml.safe_dump(stored, sort_keys=False), encoding="utf-8")
    models = tokenizer.save_in(folder)
    files = {name: file_sha256(folder / name) for name in (WEIGHTS, CONFIG, *models)}
    record = {**provenance, "files": files, "config": config.without_secrets().model_dump()}
    (folder / PROVENANCE).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    write_marker(folder, "bundle")
    return files[WEIGHTS]


def save_weights(path: Path, weights: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors by name in the safetensors format.

    Raises:
        OSError: The file cannot be written.
    """
    from safetensors.torch import save_file

    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path, metadata)
    except SafetensorError as error:
        refusal = re.search(r"os error (\d+)", str(error))
        if refusal is None:
            raise
        number = int(refusal[1])
        raise OSError(number, os.strerror(number), str(path)) from None
    path.chmod(mode)  # safetensors makes the file readable by its owner only
