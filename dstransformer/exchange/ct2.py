"""``dst export ct2``: a bundle as a CTranslate2 model, for servers without a GPU and without PyTorch.

The folder is CTranslate2's own (``model.bin``, ``config.json``, the vocabulary) with the tokenizer beside it, and with
``dst.json``, which ``dst translate --engine ct2`` reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dstransformer.config import ModelConfig
from dstransformer.data import BOS_ID, EOS_ID, UNK_ID, Tokenizer
from dstransformer.data.tokenizer import SRC_TOKENIZER_NAME, TOKENIZER_NAME
from dstransformer.errors import DataError, UserError
from dstransformer.exchange.formats import ANY, SIZES, Holds, check_bundle, fill_export, replace_export
from dstransformer.exchange.shortlist import ShortlistOptions
from dstransformer.exchange.weights import Affine, Weights, affine, attention
from dstransformer.io.products import MARKER, SIGNATURE, check_export_folder
from dstransformer.io.requirements import check_installed
from dstransformer.model import Bundle, open_bundle
from dstransformer.model.transformer import sinusoidal_table

#: CTranslate2's name of the shortlist.
VOCABULARY_MAP = "vmap.txt"

#: All files of the folder.
FILES = (
    MARKER, "model.bin", TOKENIZER_NAME, SRC_TOKENIZER_NAME, "config.json",
    SIGNATURE, VOCABULARY_MAP, "shared_vocabulary.json", "source_vocabulary.json", "target_vocabulary.json",
)  # fmt: skip

#: The architectures that CTranslate2 has.
HOLDS: Holds = {
    **SIZES,
    "num_heads": ANY,
    "d_k": ANY,
    "d_v": ANY,
    "activation": ("relu", "swish", "gelu"),
    "norm": ("post", "pre"),
    "attention_bias": (False, True),
    "output_bias": (False, True),
    "positions": ("sinusoidal", "timing", "learned"),
    "start": ("embedding", "zeros"),
    "tie_embeddings": ("all", "target", "none"),
}

#: The largest integer of weights of a reduced range: two products of such a weight and an input of 8 bits without sign
#: add up to less than 2^15.
REDUCED_MAX = 63

#: Positions that the sinusoids are stored for, if no setting asks for more.
POSITIONS = 2048


def export_ct2(
    source: str | Path | Bundle,
    out: Path,
    *,
    quantization: str = "float32",
    reduce_range: bool = False,
    positions: int | None = None,
    shortlist: ShortlistOptions | None = None,
    overwrite: bool = False,
    finish: Callable[[Path], None] | None = None,
) -> None:
    """Write a bundle as a folder for CTranslate2.

    Args:
        source: See :func:`dstransformer.model.open_bundle`.
        out: The folder; it appears once it is complete.
        quantization: The type of the stored weights, by CTranslate2's name.
        reduce_range: Whether weights of an int8 type have 7 bits, for processors without instructions for 8.
        positions: Positions that sinusoids are stored for: maximum tokens of a sentence with its end, on either side;
            None: 2,048, or more if the bundle's limits ask for them.
        shortlist: What the shortlist is built from; None: without one.
        overwrite: Whether to replace an earlier export.
        finish: Called with the complete folder before it appears, as to sign it.

    Raises:
        UserError: CTranslate2 is not installed; or ``positions`` are given and the bundle has learned ones.
        DataError: The source is not a bundle, or CTranslate2 cannot hold it; or ``out`` is something else; or the
            corpus of the shortlist is not one, or has another tokenizer.
        StorageError: The folder cannot be written.
    """
    check_installed("ctranslate2")
    check_export_folder(out, "ct2", FILES, overwrite=overwrite)
    bundle = open_bundle(source)
    check_ct2(bundle)
    if positions is not None and bundle.model.positions == "learned":
        raise UserError(
            f"--positions {positions}: it is for sinusoids, and {bundle.path} has learned positions: leave it out"
        )
    vocabulary_map = None if shortlist is None else shortlist.build(bundle.tokenizer)
    weights = bundle.load_weights()

    def write(folder: Path) -> dict[str, object]:
        if vocabulary_map is not None:
            (folder / VOCABULARY_MAP).write_text(vocabulary_map, encoding="utf-8")
        return _write_files(folder, bundle, weights, quantization, positions, reduce_range=reduce_range)

    replace_export(out, "ct2", bundle, write, overwrite=overwrite, finish=finish)


def write_ct2(bundle: Bundle, folder: Path, quantization: str) -> None:
    """Write the export of a bundle that :func:`check_ct2` has taken into a new folder; see :func:`export_ct2`."""
    weights = bundle.load_weights()
    fill_export(folder, "ct2", bundle, lambda new: _write_files(new, bundle, weights, quantization))


def check_ct2(bundle: Bundle) -> None:
    """Refuse what CTranslate2 cannot hold.

    Raises:
        DataError: The bundle is a parser, or has a setting or a value that is not in :data:`HOLDS`.
    """
    check_bundle(bundle, HOLDS, "CTranslate2", "translate with `dst translate`, without --engine ct2")


def _write_files(
    folder: Path,
    bundle: Bundle,
    weights: Weights,
    quantization: str,
    positions: int | None = None,
    *,
    reduce_range: bool = False,
) -> dict[str, object]:
    """Write the model and its tokenizer; returns what ``dst.json`` states of it."""
    search = bundle.decoding
    count = positions or max(POSITIONS, search.max_input_tokens + 1 + search.max_extra_tokens)
    if bundle.model.positions == "learned":
        count = bundle.model.max_positions
    spec = build_spec(bundle, weights, count)
    spec.validate()
    _quantise(spec, quantization, reduce_range=reduce_range)
    spec.save(str(folder))
    bundle.tokenizer.save_in(folder)
    return {
        **({"directions": [asdict(direction) for direction in bundle.directions]} if bundle.directions else {}),
        "joint_vocabulary": bundle.tokenizer.is_joint,
        "quantization": quantization,
        **({"reduce_range": True} if reduce_range else {}),
        "positions": count,
        "model": bundle.model.model_dump(),
        "decoding": search.model_dump(),
        "weights_sha256": bundle.weights_sha256,
    }


def _quantise(spec: Any, quantization: str, *, reduce_range: bool) -> None:
    """Convert the weights of a specification, to an int8 type by CTranslate2 or with a reduced range."""
    from ctranslate2.specs.model_spec import NumpyVariable, index_spec

    matrices = {}
    if reduce_range:
        variables = spec.variables().items()
        matrices = {name: variable.numpy().copy() for name, variable in variables if name.endswith("/weight")}
    spec.optimize(quantization=quantization)
    stored = spec.variables()
    for name, matrix in matrices.items():
        if f"{name}_scale" not in stored or isinstance(stored[name], str):  # kept in fp32, or shared
            continue
        scale = REDUCED_MAX / np.abs(matrix).max(axis=1).clip(min=1e-36)
        part = index_spec(spec, name.removesuffix("/weight"))
        part.weight = NumpyVariable(np.rint(matrix * scale[:, None]).astype(np.int8))
        part.weight_scale = NumpyVariable(scale.astype(np.float32))


def vocabulary(bundle: Bundle, tokenizer: Tokenizer) -> list[str]:
    """The name of each row of the embedding of a side."""
    size = tokenizer.vocab_size
    names = tokenizer.pieces(range(size)) + unused_rows(bundle.model, size)
    if len(set(names)) < len(names):
        raise DataError(
            f"{bundle.path}: two pieces of the tokenizer have the same name, and CTranslate2 tells pieces apart by name"
        )
    return names


def unused_rows(model: ModelConfig, vocab_size: int) -> list[str]:
    """The names of the rows of the embedding beyond the tokenizer's pieces, which are never an output."""
    return [f"<row {row}>" for row in range(vocab_size, model.embedding_rows(vocab_size))]


def build_spec(bundle: Bundle, weights: Weights, positions: int) -> Any:
    """CTranslate2's specification of the model, with its weights and sinusoids for so many positions."""
    from ctranslate2.specs import common_spec, transformer_spec

    model = bundle.model
    width = head_width(model)
    options = {
        "num_heads": model.num_heads,
        "pre_norm": model.norm == "pre",
        "activation": getattr(common_spec.Activation, model.activation.upper()),
        **({"head_dim": width} if width * model.num_heads != model.d_model else {}),
    }
    encoder = transformer_spec.TransformerEncoderSpec(num_layers=model.encoder_depth, **options)
    decoder = transformer_spec.TransformerDecoderSpec(num_layers=model.decoder_depth, **options)
    spec = transformer_spec.TransformerSpec(encoder, decoder)
    special = bundle.tokenizer.pieces([UNK_ID, BOS_ID, EOS_ID])
    spec.register_source_vocabulary(vocabulary(bundle, bundle.tokenizer.src))
    spec.register_target_vocabulary(vocabulary(bundle, bundle.tokenizer))
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = special
    spec.config.decoder_start_token = special[1]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = model.norm_epsilon
    tied = model.tie_embeddings
    encoder.embeddings[0].weight = _array(weights["embedding.weight" if tied == "all" else "src_embedding.weight"])
    embedding = weights["embedding.weight"]
    if model.start != "embedding":  # decoding starts from zeros
        embedding = embedding.clone()
        embedding[BOS_ID] = 0.0
    decoder.embeddings.weight = _array(embedding)
    decoder.projection.weight = _array(weights["softmax.weight" if tied == "none" else "embedding.weight"])
    if model.output_bias:
        decoder.projection.bias = _array(weights["output_bias"])
    for side, part, table in (("encoder", encoder, "src_input"), ("decoder", decoder, "tgt_input")):
        if model.positions == "learned":
            encodings = weights[f"{table}.positions.weight"]
        else:
            encodings = sinusoidal_table(positions, model.d_model, torch.float32, torch.device("cpu"), model.positions)
        part.position_encodings.encodings = _array(encodings)
        if model.norm == "pre":
            _set_norm(part.layer_norm, affine(weights, f"{side}_norm"))
        for number, layer in enumerate(part.layer):
            _set_layer(layer, weights, f"{side}.{number}", model)
    return spec


def head_width(model: ModelConfig) -> int:
    """The width of the exported heads: CTranslate2 has one width for queries, keys and values."""
    usual, rest = divmod(model.d_model, model.num_heads)
    widest = max(model.d_k, model.d_v)
    return usual if not rest and widest <= usual else widest


def _set_layer(layer: Any, weights: Weights, name: str, model: ModelConfig) -> None:
    parts = attention(weights, f"{name}.self_attention", model, head_width(model))
    _set_linear(layer.self_attention.linear[0], parts.q, parts.k, parts.v)
    _set_linear(layer.self_attention.linear[1], parts.out)
    _set_norm(layer.self_attention.layer_norm, affine(weights, f"{name}.self_attention_residual.norm"))
    if name.startswith("decoder"):
        parts = attention(weights, f"{name}.memory_attention", model, head_width(model))
        _set_linear(layer.attention.linear[0], parts.q)
        _set_linear(layer.attention.linear[1], parts.k, parts.v)
        _set_linear(layer.attention.linear[2], parts.out)
        _set_norm(layer.attention.layer_norm, affine(weights, f"{name}.memory_attention_residual.norm"))
    _set_linear(layer.ffn.linear_0, affine(weights, f"{name}.feed_forward.inner"))
    _set_linear(layer.ffn.linear_1, affine(weights, f"{name}.feed_forward.outer"))
    _set_norm(layer.ffn.layer_norm, affine(weights, f"{name}.feed_forward_residual.norm"))


def _set_linear(spec: Any, *parts: Affine) -> None:
    """One matrix of projections that read the same input. No bias is stored if all are zero."""
    spec.weight = _array(torch.cat([part.weight for part in parts]))
    bias = torch.cat([part.bias for part in parts])
    if bias.any():
        spec.bias = _array(bias)


def _set_norm(spec: Any, norm: Affine) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.contiguous().numpy()
