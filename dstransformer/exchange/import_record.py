"""What importers share: numbers of a configuration, the provenance of a bundle, and how it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from dstransformer import __version__
from dstransformer.config import Config, ModelConfig, complete_config
from dstransformer.data import Tokenizer
from dstransformer.errors import ConfigError, DataError, shown
from dstransformer.exchange.formats import FULL_ADVICE, SIZES
from dstransformer.io.files import file_sha256, replace_folder
from dstransformer.model import Bundle, open_bundle, save_bundle
from dstransformer.model.bundle import describe_misfit, weightless_model


def imported_from(format_name: str, files: Sequence[Path], languages: tuple[str | None, str | None]) -> dict[str, Any]:
    """The provenance of a model that was not trained here.

    Args:
        format_name: What kind of model it was.
        files: The files that it was read from.
        languages: Codes of the source and the target language, None if unknown.
    """
    hashes = {path.name: file_sha256(path) for path in files}
    return {
        "dstransformer": __version__,
        "imported": {"format": format_name, "path": str(files[0].absolute().parent), "files": hashes},
        "step": None,
        "src_lang": languages[0],
        "tgt_lang": languages[1],
    }


def whole_number(stated: Mapping[str, Any], name: str, path: Path, least: int = 1) -> int:
    """A whole number in a configuration, ``least`` or more.

    Raises:
        DataError: It is missing, or something else.
    """
    value = stated.get(name)
    if type(value) is not int or value < least:
        raise DataError(
            f"{path}: {name} is {shown(value)}, not a number from {least} on: if it is damaged, copy it again"
        )
    return value


def build_config(
    stated: Mapping[str, Any], path: Path, sizes: Sequence[str], decoding: Mapping[str, Any], **more: object
) -> Config:
    """The configuration of a bundle of a Transformer of Marian.

    Args:
        stated: Its configuration there.
        path: The file, for errors.
        sizes: The names there of the width, the heads, the feed-forward width, and the layers of encoder and decoder.
        decoding: Its search.
        more: What else the importer knows of ``model``. Only :data:`SIZES` may be left to ``base.yaml``.

    Raises:
        DataError: A size is missing, or a value is out of bounds.
    """
    width, heads, inner, encoder, decoder = (whole_number(stated, name, path) for name in sizes)
    if width % heads or width % 2:
        raise DataError(f"{path}: {sizes[0]} {width} is odd, or not a multiple of {sizes[1]} {heads}")
    model = {
        "num_layers": encoder,
        "encoder_layers": None if encoder == decoder else encoder,
        "decoder_layers": None if encoder == decoder else decoder,
        "d_model": width,
        "d_ff": inner,
        "num_heads": heads,
        "d_k": width // heads,
        "d_v": width // heads,
        "norm": "post",
        "attention_bias": True,
        "output_bias": True,
        "vocab_multiple": 1,
        **more,
    }
    assert ModelConfig.model_fields.keys() <= {*model, *SIZES}, "an import states what its models have"
    try:
        return complete_config({"model": model, "decoding": dict(decoding)}, str(path))
    except ConfigError as error:
        raise DataError(f"{error}; if it is damaged, copy it again") from None


def write_bundle(
    out: Path,
    weights: dict[str, Tensor],
    config: Config,
    tokenizer: Tokenizer,
    record: dict[str, Any],
    *,
    misfit: str,
    overwrite: bool,
) -> Bundle:
    """Write the bundle of an imported model; it appears once it is complete.

    Args:
        out: The bundle.
        weights: Its weights in fp32.
        config: Its configuration.
        tokenizer: Its tokenizer.
        record: Its provenance.
        misfit: What the error says before the reason if the weights do not fit the rest.
        overwrite: Whether to replace a bundle.

    Raises:
        DataError: The weights do not fit the configuration or the tokenizer.
        StorageError: The bundle cannot be written.
    """
    if (reason := describe_misfit(weightless_model(config.model, tokenizer), weights)) is not None:
        raise DataError(f"{misfit}: {reason}")

    def write(new: Path) -> None:
        save_bundle(new, weights, config, tokenizer, record)

    replace_folder(out, write, overwrite=overwrite, full=FULL_ADVICE)
    return open_bundle(out)
