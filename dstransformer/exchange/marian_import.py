"""``dst import marian``: a Transformer of Marian (``model.npz``) as a bundle.

Marian writes its weights as NumPy arrays without pickles, with its configuration as YAML among them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from dstransformer.config import Config, ModelConfig
from dstransformer.data import BOS_ID, Tokenizer
from dstransformer.data.tokenizer import MAX_BYTES, SRC_TOKENIZER_NAME, TOKENIZER_NAME
from dstransformer.errors import DataError, shown
from dstransformer.exchange.formats import check_settings
from dstransformer.exchange.import_record import build_config, imported_from, write_bundle
from dstransformer.exchange.marian_npz import CONFIG, EPSILON, marian_names
from dstransformer.exchange.marian_weights import Load, bundle_weights
from dstransformer.io.files import read_bounded, read_error
from dstransformer.io.products import check_bundle_folder
from dstransformer.model import Bundle

#: The embeddings of source and target, by ``model.tie_embeddings``.
_APART = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
PIECES = {"all": ("model.shared.weight",) * 2, "target": _APART, "none": _APART}

#: What Marian's configuration may ask for and a bundle has. What it does not state has the first value.
_HOLDS: dict[str, tuple[object, ...]] = {
    "type": ("transformer",),
    "transformer-preprocess": ("",),
    "transformer-postprocess": ("dan", "an"),
    "transformer-ffn-activation": ("swish", "relu", "gelu"),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-decoder-autoreg": ("self-attention",),
}

#: What may have any value: what is read below, and what other types of models have (``src/models/encoder_decoder.cpp``
#: of Marian 1.12 lists all that it stores). Anything else must be off.
_ANY = (
    "version", "dim-vocabs", "special-vocab", "dim-emb", "enc-depth", "dec-depth", "tied-embeddings",
    "tied-embeddings-src", "tied-embeddings-all", "output-omit-bias",
    "transformer-heads", "transformer-dim-ffn", "transformer-decoder-dim-ffn", "transformer-postprocess-emb",
    "transformer-guided-alignment-layer",
    "dim-rnn", "enc-cell", "enc-type", "enc-cell-depth", "dec-cell", "dec-cell-base-depth", "dec-cell-high-depth",
    "skip", "layer-normalization",
    "transformer-dim-aan", "transformer-aan-depth", "transformer-aan-activation", "transformer-aan-nogate",
    "bert-train-type-embeddings", "bert-type-vocab-size", "ulr-trainable-transformation", "ulr-dim-emb",
    "lemma-dependency", "factors-combine",
)  # fmt: skip

#: The names of the width, the heads, the feed-forward width, and the layers of encoder and decoder.
_SIZES = ("dim-emb", "transformer-heads", "transformer-dim-ffn", "enc-depth", "dec-depth")


def import_marian(
    model: Path,
    vocabularies: Sequence[Path],
    out: Path,
    *,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    overwrite: bool = False,
) -> Bundle:
    """Write a bundle of a model of Marian.

    Args:
        model: Its ``.npz`` file.
        vocabularies: The SentencePiece models of the source and the target side; one for both.
        out: The bundle; it appears once it is complete.
        src_lang: Code of the source language.
        tgt_lang: Code of the target language.
        overwrite: Whether to replace a bundle.

    Raises:
        DataError: A file is missing or damaged, or a bundle cannot hold the model; or ``out`` is something else.
        StorageError: The bundle cannot be written.
    """
    check_bundle_folder(out, "--out", overwrite=overwrite)
    tokenizer = _open_tokenizer(vocabularies)
    try:
        with np.load(model, allow_pickle=False) as arrays:
            config = _read_config(_stated(arrays, model), model, tokenizer)
            load = _loader(arrays, config.model, model)
            rows = [_rows(tokenizer.src), _rows(tokenizer)]
            _check_sizes(load, config, rows, model)
            weights = bundle_weights(load, config.model, *rows)
    except OSError as error:
        raise read_error(model, error) from None
    except (ValueError, zipfile.BadZipFile, KeyError) as error:
        raise DataError(f"{model} is not an .npz file of Marian ({shown(error, quote=False)})") from None
    record = imported_from("Marian", [model, *vocabularies], (src_lang, tgt_lang))
    misfit = f"{model} does not fit its own configuration"
    return write_bundle(out, weights, config, tokenizer, record, misfit=misfit, overwrite=overwrite)


def _open_tokenizer(vocabularies: Sequence[Path]) -> Tokenizer:
    contents = []
    for path in vocabularies:
        if path.suffix in (".yml", ".yaml", ".json"):
            raise DataError(
                f"{path} numbers pieces, but does not divide text: only vocabularies of SentencePiece (.spm) can be "
                "imported; a model of transformers has both, see dst import hf"
            )
        try:
            contents.append(read_bounded(path, MAX_BYTES))
        except OSError as error:
            raise read_error(path, error) from None
    if len(set(contents)) == 1:
        return Tokenizer(contents[0], str(vocabularies[0]))
    src = Tokenizer(contents[0], f"{vocabularies[0]} ({SRC_TOKENIZER_NAME})")
    return Tokenizer(contents[1], f"{vocabularies[1]} ({TOKENIZER_NAME})", src)


def _rows(tokenizer: Tokenizer) -> list[int | None]:
    """For each id Marian's row: the number of the piece in the SentencePiece model. Decoding starts from zeros."""
    rows = [None if piece < 0 else piece for piece in tokenizer.model_pieces]
    rows[BOS_ID] = None
    return rows


def _loader(arrays: Any, model: ModelConfig, path: Path) -> Load:
    """Reads weights by their names in a ``MarianMTModel``."""
    names = marian_names(model)

    def load(name: str) -> Tensor:
        marian, transposed = names[name]
        if name == "final_logits_bias" and marian not in arrays.files:  # output-omit-bias
            return torch.zeros(len(load(PIECES[model.tie_embeddings][1])))
        if marian == "decoder_ff_logit_out_W" and f"{marian}t" in arrays.files:
            marian, transposed = f"{marian}t", False
        if marian not in arrays.files:
            raise DataError(f"{path} has no array {marian}: it does not fit its configuration")
        array = torch.from_numpy(np.ascontiguousarray(arrays[marian]))
        if not array.is_floating_point():
            raise DataError(
                f"{path}: {marian} is of type {arrays[marian].dtype}: give the model before it was quantised"
            )
        if transposed:
            return array.t()
        return array if name in PIECES[model.tie_embeddings] else array.flatten()

    return load


def _stated(arrays: Any, path: Path) -> Mapping[str, Any]:
    if CONFIG not in arrays.files:
        raise DataError(f"{path} has no configuration ({CONFIG}): it is not a model of Marian")
    text = bytes(arrays[CONFIG]).rstrip(b"\0").decode("utf-8", errors="replace")
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError:
        content = None
    if not isinstance(content, dict):
        raise DataError(f"{path}: its configuration ({CONFIG}) is not YAML: {shown(text)}")
    return content


def _read_config(stated: Mapping[str, Any], path: Path, tokenizer: Tokenizer) -> Config:
    """The configuration of the bundle.

    Raises:
        DataError: A bundle cannot hold the model.
    """
    settings = {**{name: values[0] for name, values in _HOLDS.items()}, **stated}
    checked = ((name, value) for name, value in settings.items() if name in _HOLDS or (value and name not in _ANY))
    check_settings(checked, _HOLDS, f"{path}: ", "a bundle")
    encoder, decoder = stated.get("transformer-dim-ffn"), stated.get("transformer-decoder-dim-ffn", 0)
    if decoder not in (0, encoder):
        raise DataError(f"{path}: transformer-dim-ffn is {encoder} and that of the decoder {decoder}: a bundle has one")
    ties = "target" if stated.get("tied-embeddings") else "none"
    if stated.get("tied-embeddings-all"):
        ties = "all"
        if not tokenizer.is_joint:
            raise DataError(f"{path} has one embedding for both sides (tied-embeddings-all): give one vocabulary")
    elif stated.get("tied-embeddings-src"):
        raise DataError(f"{path}: tied-embeddings-src is true without tied-embeddings-all; a bundle cannot hold that")
    search = _decoder(path)
    decoding = {
        "beam_size": search.get("beam-size", 12),
        "length_penalty": search.get("normalize", 0.0),
        "length_offset": 0.0,
    }
    return build_config(
        stated,
        path,
        _SIZES,
        decoding,
        activation=settings["transformer-ffn-activation"],
        norm_epsilon=EPSILON,
        positions="timing",
        start="zeros",
        tie_embeddings=ties,
    )


def _decoder(path: Path) -> Mapping[str, Any]:
    """The settings of the search that Marian writes beside a model, if they are there."""
    settings = path.with_name(f"{path.name}.decoder.yml")
    try:
        content = yaml.safe_load(read_bounded(settings, 2**20)) if settings.is_file() else {}
    except OSError as error:
        raise read_error(settings, error) from None
    except yaml.YAMLError:
        content = None
    if not isinstance(content, dict):
        raise DataError(f"{settings} is not YAML: remove it, or copy it again")
    if content.get("word-penalty"):
        raise DataError(f"{settings}: word-penalty is {shown(content['word-penalty'])}, which our search does not have")
    return content


def _check_sizes(load: Load, config: Config, rows: Sequence[Sequence[int | None]], path: Path) -> None:
    """Refuse vocabularies of other sizes than the embeddings."""
    for side, name, side_rows in zip(("source", "target"), PIECES[config.model.tie_embeddings], rows, strict=True):
        embeddings, pieces = len(load(name)), 1 + max(row for row in side_rows if row is not None)
        if embeddings != pieces:
            raise DataError(
                f"{path} has embeddings of {embeddings:,} {side} pieces, and the vocabulary {pieces:,}: it is of "
                "another one"
            )
