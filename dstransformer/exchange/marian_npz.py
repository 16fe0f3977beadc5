"""``dst export marian``: a bundle as a model of Marian, from where ``marian convert`` leads to browsers (Bergamot)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from dstransformer.config import ModelConfig
from dstransformer.data import Tokenizer
from dstransformer.errors import DataError
from dstransformer.exchange.formats import check_bundle, replace_export
from dstransformer.exchange.marian_weights import marian_holds, marian_weights
from dstransformer.exchange.shortlist import ShortlistOptions
from dstransformer.exchange.weights import length_exponent
from dstransformer.io.products import MARKER, SIGNATURE, check_export_folder
from dstransformer.model import Bundle, open_bundle

MODEL, DECODER = "model.npz", "decoder.yml"
VOCABULARY, SOURCE_VOCABULARY, TARGET_VOCABULARY = "vocab.spm", "vocab.src.spm", "vocab.tgt.spm"
LEXICON = "lex.s2t"

#: All files of the folder.
FILES = (MARKER, MODEL, DECODER, VOCABULARY, SOURCE_VOCABULARY, TARGET_VOCABULARY, LEXICON, SIGNATURE)

#: The array of the model that holds its configuration, as the bytes of its YAML.
CONFIG = "special:model.yml"

#: The epsilon of Marian's norms.
EPSILON = 1e-6

#: The parts of a layer, in the names of a ``MarianMTModel`` and of Marian.
_ATTENTIONS = {"encoder": {"self_attn": "self"}, "decoder": {"self_attn": "self", "encoder_attn": "context"}}
_PROJECTIONS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}

#: The weights with a row for each piece.
_OF_PIECES = ("shared.weight", "embed_tokens.weight", "lm_head.weight")


def marian_names(config: ModelConfig) -> dict[str, tuple[str, bool]]:
    """For each weight of a ``MarianMTModel`` its name in Marian, and whether it is transposed there.

    Args:
        config: The architecture.
    """
    names = {"final_logits_bias": ("decoder_ff_logit_out_b", False)}
    if config.tie_embeddings == "all":
        names["model.shared.weight"] = ("Wemb", False)
    else:
        for side in ("encoder", "decoder"):
            names[f"model.{side}.embed_tokens.weight"] = (f"{side}_Wemb", False)
    if config.tie_embeddings == "none":
        names["lm_head.weight"] = ("decoder_ff_logit_out_W", True)
    for side, depth in (("encoder", config.encoder_depth), ("decoder", config.decoder_depth)):
        for number in range(depth):
            names |= _layer_names(side, number)
    return names


def _layer_names(side: str, number: int) -> Iterator[tuple[str, tuple[str, bool]]]:
    theirs, marian = f"model.{side}.layers.{number}", f"{side}_l{number + 1}"
    norms = {}
    for attention, prefix in _ATTENTIONS[side].items():
        for projection, letter in _PROJECTIONS.items():
            yield f"{theirs}.{attention}.{projection}.weight", (f"{marian}_{prefix}_W{letter}", True)
            yield f"{theirs}.{attention}.{projection}.bias", (f"{marian}_{prefix}_b{letter}", False)
        norms[f"{attention}_layer_norm"] = f"{prefix}_Wo"
    for norm, name in (norms | {"final_layer_norm": "ffn_ffn"}).items():
        yield f"{theirs}.{norm}.weight", (f"{marian}_{name}_ln_scale", False)
        yield f"{theirs}.{norm}.bias", (f"{marian}_{name}_ln_bias", False)
    for layer in (1, 2):
        yield f"{theirs}.fc{layer}.weight", (f"{marian}_ffn_W{layer}", True)
        yield f"{theirs}.fc{layer}.bias", (f"{marian}_ffn_b{layer}", False)


def export_marian(
    source: str | Path | Bundle,
    out: Path,
    *,
    shortlist: ShortlistOptions | None = None,
    overwrite: bool = False,
    finish: Callable[[Path], None] | None = None,
) -> None:
    """Write a bundle as a model of Marian with its vocabulary.

    Args:
        source: See :func:`dstransformer.model.open_bundle`.
        out: The folder; it appears once it is complete.
        shortlist: A corpus whose lexical table limits what Marian translates to; None for no such limit.
        overwrite: Whether to replace an earlier export.
        finish: Called with the complete folder before it appears, as to sign it.

    Raises:
        DataError: The source is not a bundle, or Marian cannot hold it; or ``out`` is something else.
        StorageError: The folder cannot be written.
    """
    check_export_folder(out, "marian", FILES, overwrite=overwrite)
    bundle = open_bundle(source)
    holds = marian_holds(bundle.model, "timing", ("zeros",))
    check_bundle(bundle, holds, "Marian", "train with that, or use `dst export ct2`, which holds more")
    if bundle.directions:
        raise DataError(
            f"{bundle.path} translates in several directions, whose tags a vocabulary of Marian would divide: train a "
            "model of one direction"
        )
    lexicon = None if shortlist is None else shortlist.lexical_text(bundle.tokenizer)
    arrays = marian_arrays(bundle)
    decoder = decoder_config(bundle)
    if shortlist is not None:
        decoder["shortlist"] = [LEXICON, shortlist.frequent, shortlist.best, 0]

    def write(folder: Path) -> dict[str, object]:
        np.savez(folder / MODEL, **arrays)
        if bundle.tokenizer.is_joint:
            bundle.tokenizer.save(folder / VOCABULARY)
        else:
            bundle.tokenizer.src.save(folder / SOURCE_VOCABULARY)
            bundle.tokenizer.save(folder / TARGET_VOCABULARY)
        if lexicon is not None:
            (folder / LEXICON).write_text(lexicon, encoding="utf-8")
        (folder / DECODER).write_text(yaml.safe_dump(decoder, sort_keys=False), encoding="utf-8")
        return {"weights_sha256": bundle.weights_sha256}

    replace_export(out, "marian", bundle, write, overwrite=overwrite, finish=finish)


def marian_arrays(bundle: Bundle) -> dict[str, Any]:
    """The arrays of ``model.npz`` by name: its weights in fp32, and its configuration."""
    model, tokenizer = bundle.model, bundle.tokenizer
    rows = {"encoder": _rows(tokenizer.src), "decoder": _rows(tokenizer)}
    # Marian decodes from zeros by itself, and the begin of a sentence keeps its share of the probability.
    state = marian_weights(bundle.load_weights(), model.model_copy(update={"start": "embedding"}), EPSILON)
    arrays: dict[str, Any] = {}
    for name, (marian, transposed) in marian_names(model).items():
        weight = state[name]
        if name == "final_logits_bias":
            weight = weight[:, rows["decoder"]]
        elif weight.shape[0] != model.d_model and name.endswith(_OF_PIECES):
            weight = weight[rows["encoder" if "encoder" in name else "decoder"]]
        matrix = weight.t() if transposed else weight
        if matrix.dim() == 1:
            matrix = matrix[None]  # a vector is one row
        arrays[marian] = np.ascontiguousarray(matrix.to(torch.float32).numpy())
    config = yaml.safe_dump(marian_config(model, len(rows["encoder"]), len(rows["decoder"])), sort_keys=True)
    arrays[CONFIG] = np.frombuffer(config.encode("utf-8") + b"\0", dtype=np.int8)
    return arrays


def _rows(tokenizer: Tokenizer) -> list[int]:
    """For each piece of the SentencePiece model its id."""
    ids = {piece: number for number, piece in enumerate(tokenizer.model_pieces) if piece >= 0}
    return [ids[piece] for piece in range(len(ids))]


def marian_config(model: ModelConfig, src_pieces: int, tgt_pieces: int) -> Mapping[str, Any]:
    """The configuration that Marian stores in its models."""
    return {
        "type": "transformer",
        "version": "v1.12.0",
        "dim-vocabs": [src_pieces, tgt_pieces],
        "dim-emb": model.d_model,
        "enc-depth": model.encoder_depth,
        "dec-depth": model.decoder_depth,
        "tied-embeddings-all": model.tie_embeddings == "all",
        "tied-embeddings": model.tie_embeddings == "target",
        "tied-embeddings-src": False,
        "transformer-heads": model.num_heads,
        "transformer-dim-ffn": model.d_ff,
        "transformer-decoder-dim-ffn": 0,
        "transformer-ffn-depth": 2,
        "transformer-decoder-ffn-depth": 0,
        "transformer-ffn-activation": model.activation,
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": "",
        "transformer-decoder-autoreg": "self-attention",
        "transformer-tied-layers": [],
        "transformer-train-position-embeddings": False,
        "transformer-no-projection": False,
        "input-types": [],
        "skip": False,
        "layer-normalization": False,
        "right-left": False,
        "ulr": False,
    }


def decoder_config(bundle: Bundle) -> dict[str, Any]:
    """The content of ``decoder.yml``: our beam search, as nearly as Marian has it.

    Marian divides log-probabilities by ``length ** normalize``.
    """
    search = bundle.decoding
    joint = bundle.tokenizer.is_joint
    return {
        "relative-paths": True,
        "models": [MODEL],
        "vocabs": [VOCABULARY, VOCABULARY] if joint else [SOURCE_VOCABULARY, TARGET_VOCABULARY],
        "beam-size": search.beam_size,
        "normalize": round(length_exponent(search), 4),
        "word-penalty": 0,
    }
