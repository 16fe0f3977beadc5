"""``dst import marian``: a Transformer of Marian (``model.npz``) as a bundle.

Marian writes its weights as NumPy arrays without pickles, with its configuration as YAML among them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from dstransformer.exchange.import_record import both_depths, build_config, imported_from, whole_number, write_bundle
from dstransformer.exchange.marian_npz import CONFIG, EPSILON, marian_names
from dstransformer.exchange.marian_weights import Load, bundle_weights
from dstransformer.io.files import read_bounded, read_error
from dstransformer.io.products import check_bundle_folder
from dstransformer.model import Bundle

#: The embeddings of source and target, by ``model.tie_embeddings``.
_APART = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
PIECES = {"all": ("model.shared.weight",) * 2, "target": _APART, "none": _APART}

#: What Marian's configuration may ask for and a bundle does not have, with the values that it may have.
_REQUIRED: dict[str, tuple[object, ...]] = {
    "type": ("transformer",),
    "transformer-preprocess": ("",),
    "transformer-postprocess": ("dan", "an"),
    "transformer-postprocess-top": ("",),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-train-position-embeddings": (False,),
    "transformer-disable-position-embeddings": (False,),
    "transformer-alibi-shift": (False,),
    "transformer-tied-layers": ([],),
    "transformer-no-projection": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-pool": (False,),
    "transformer-rnn-projection": (False,),
    "input-types": ([],),
    "factors-dim-emb": (0,),
    "lemma-dim-emb": (0,),
    "right-left": (False,),
    "ulr": (False,),
}

_ACTIVATIONS = {"relu": "relu", "swish": "swish", "gelu": "gelu"}


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
    with _open_arrays(model) as arrays:
        config = _read_config(_stated(arrays, model), model, tokenizer)
        load = _loader(arrays, config.model, model)
        rows = [_rows(side) for side in (tokenizer.src, tokenizer)]
        _check_sizes(load, config, rows, model)
        weights = bundle_weights(load, config.model, *rows)
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


@contextmanager
def _open_arrays(path: Path) -> Iterator[Any]:
    """Within it, the arrays of a file can be read."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays
    except OSError as error:
        raise read_error(path, error) from None
    except (ValueError, zipfile.BadZipFile, KeyError) as error:
        raise DataError(f"{path} is not an .npz file of Marian ({shown(error, quote=False)})") from None


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
    for name, values in _REQUIRED.items():
        if stated.get(name, values[0]) not in values:
            raise DataError(f"{path}: {name} is {shown(stated[name])}, and a bundle cannot hold that")
    activation = stated.get("transformer-ffn-activation", "swish")
    if activation not in _ACTIVATIONS:
        raise DataError(f"{path}: transformer-ffn-activation is {shown(activation)}, and a bundle cannot hold that")
    width, heads = whole_number(stated, "dim-emb", path), whole_number(stated, "transformer-heads", path)
    wide, other = whole_number(stated, "transformer-dim-ffn", path), stated.get("transformer-decoder-dim-ffn", 0)
    if width % heads or width % 2:
        raise DataError(f"{path}: dim-emb {width} is odd, or not a multiple of the {heads} heads")
    if other not in (0, wide):
        raise DataError(f"{path}: transformer-dim-ffn is {wide} and that of the decoder {other}: a bundle has one")
    depths = [whole_number(stated, f"{side}-depth", path) for side in ("enc", "dec")]
    search = _decoder(path)
    architecture = {
        **both_depths(depths),
        "d_model": width,
        "d_ff": wide,
        "num_heads": heads,
        "d_k": width // heads,
        "d_v": width // heads,
        "activation": _ACTIVATIONS[activation],
        "norm_epsilon": EPSILON,
        "positions": "timing",
        "start": "zeros",
        "attention_bias": True,
        "output_bias": True,
        "tie_embeddings": _ties(stated, path, joint=tokenizer.is_joint),
        "vocab_multiple": 1,
    }
    decoding = {
        "beam_size": search.get("beam-size", 12),
        "length_penalty": search.get("normalize", 0.0),
        "length_offset": 0.0,
    }
    return build_config(architecture, decoding, path)


def _ties(stated: Mapping[str, Any], path: Path, *, joint: bool) -> str:
    if stated.get("tied-embeddings-all"):
        if not joint:
            raise DataError(f"{path} has one embedding for both sides (tied-embeddings-all): give one vocabulary")
        return "all"
    if stated.get("tied-embeddings-src"):
        raise DataError(f"{path}: tied-embeddings-src is true without tied-embeddings-all; a bundle cannot hold that")
    return "target" if stated.get("tied-embeddings") else "none"


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
    names = PIECES[config.model.tie_embeddings]
    for side, name, own in zip(("source", "target"), names, rows, strict=True):
        pieces = 1 + max(row for row in own if row is not None)
        found = len(load(name))
        if found != pieces:
            raise DataError(
                f"{path} has embeddings of {found:,} {side} pieces, and the vocabulary {pieces:,}: it is of another one"
            )
