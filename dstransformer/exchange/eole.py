"""``dst import eole``: a Transformer of eole, the successor of OpenNMT-py, as a bundle.

Reading it needs nothing of eole: its files are safetensors, JSON and SentencePiece models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dstransformer.config import Config
from dstransformer.errors import DataError, counted, shown
from dstransformer.exchange.eole_weights import Stored, bundle_weights
from dstransformer.exchange.import_record import (
    Imported,
    both_depths,
    build_config,
    imported_from,
    whole_number,
    write_bundle,
)
from dstransformer.exchange.vocabularies import VOCABULARY, Pieces, Rows, open_tokenizer, read_pieces
from dstransformer.io.files import read_error
from dstransformer.io.json_text import read_record
from dstransformer.io.products import check_bundle_folder

CONFIG, WEIGHTS = "config.json", "model.00.safetensors"

_ADVICE = "if it is damaged, copy the model again"

SIDES = ("encoder", "decoder")

#: What a model may ask for and a bundle does not have: eole's default, then the other values that it may have.
_REQUIRED: dict[str, tuple[object, ...]] = {
    "layer_norm": ("standard", "standardFP32"),
    "encoder_layer_style": ("standard",),
    "final_encoder_layer_norm": (True,),
    "ffn_layernorm": (False,),
    "parallel_residual": (False,),
    "shared_layer_norm": (False,),
    "query_norm": (False,),
    "key_norm": (False,),
    "value_norm": (False,),
    "q_gating": (False,),
    "attn_scaling": (None,),
    "num_experts": (0,),
    "relative_positions_buckets": (0,),
    "sliding_window": (0,),
    "coverage_attn": (False,),
    "LM_type": ("causal",),
    "layer_types": (None,),
    "num_mtp_heads": (0,),
    "generator_function": ("softmax",),
    "add_estimator": (False,),
    "left_pad": (False,),
    "adapter": (None,),
    "embedding_type": ("standard",),
    "normalize": (False, None),
}

_ACTIVATIONS = {"relu": "relu", "silu": "swish", "gelu": "gelu"}

_POSITIONS = {"SinusoidalInterleaved": "sinusoidal", "SinusoidalConcat": "timing"}

#: Widths and depths that eole does not state if they are these.
_SIZES = {"layers": 2, "hidden_size": 512, "transformer_ff": 2048, "heads": 8}

#: The transforms that do nothing when eole translates.
_OF_TRAINING = ("filtertoolong", "filtertooshort", "switchout", "tokendrop", "tokenmask", "bart")


def import_eole(
    folder: Path,
    out: Path,
    *,
    sentencepiece: Sequence[Path] = (),
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    overwrite: bool = False,
) -> Imported:
    """Write a bundle of a model of eole.

    Args:
        folder: The folder that ``eole train`` writes.
        out: The bundle; it appears once it is complete.
        sentencepiece: The SentencePiece models of source and target; none takes those that the model names.
        src_lang: Code of the source language.
        tgt_lang: Code of the target language.
        overwrite: Whether to replace a bundle.

    Raises:
        DataError: The folder lacks a file or holds another model, or a bundle cannot hold it; or ``out`` is something
            else.
        StorageError: The bundle cannot be written.
    """
    check_bundle_folder(out, "--out", overwrite=overwrite)
    _check_folder(folder)
    content = read_record(folder / CONFIG, dict, advice=_ADVICE)
    check_architecture(content, folder / CONFIG)
    check_transforms(content, folder / CONFIG)
    pieces = read_pieces(folder / VOCABULARY, _ADVICE)
    models = list(sentencepiece) or sentencepiece_models(content, folder)
    tokenizer, rows, absent = open_tokenizer(pieces, models)
    files = sorted(folder.glob("model.*.safetensors"))
    stored = Stored(_load(files), files[0])
    config = read_config(content, folder / CONFIG, attention_bias=stored.has_attention_bias)
    weights = _convert(stored, folder, config, pieces, rows, shares=bool(content["model"].get("share_embeddings")))
    record = imported_from("eole", [folder / CONFIG, *files, folder / VOCABULARY, *models], (src_lang, tgt_lang))
    misfit = f"{files[0]} does not fit {CONFIG}"
    bundle = write_bundle(out, weights, config, tokenizer, record, misfit=misfit, overwrite=overwrite)
    return Imported(bundle, absent)


def _check_folder(folder: Path) -> None:
    """Refuse a folder that lacks a file."""
    if folder.suffix in (".pt", ".bin"):
        raise DataError(f"{folder} is a pickle, which may execute anything when it is read: eole writes {WEIGHTS}")
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: name one with {CONFIG}, {WEIGHTS} and {VOCABULARY}")
    for name in (CONFIG, WEIGHTS, VOCABULARY):
        if (folder / name).is_file():
            continue
        pickled = sorted(path.name for kind in ("*.pt", "*.bin") for path in folder.glob(kind))
        if name == WEIGHTS and pickled:
            raise DataError(
                f"{folder} has no {WEIGHTS}; {pickled[0]} is a pickle, which may execute anything when it is read"
            )
        raise DataError(f"{folder} has no {name}: it is not the folder of a model of eole")


def _convert(
    stored: Stored, folder: Path, config: Config, pieces: Pieces, rows: tuple[Rows, Rows], *, shares: bool
) -> dict[str, Tensor]:
    """The weights of the bundle; ``shares`` says whether source and target have one embedding.

    Raises:
        DataError: The weights do not fit the configuration or the vocabulary.
    """
    if shares and pieces.src != pieces.tgt:
        raise DataError(f"{folder / CONFIG}: share_embeddings is true, and {VOCABULARY} has two vocabularies")
    names = ["src_emb.embeddings.weight", *([] if shares else ["tgt_emb.embeddings.weight"])]
    try:
        for name, vocabulary in zip(names, (pieces.src, pieces.tgt), strict=False):
            if (found := len(stored.read(name))) != (wanted := len(vocabulary)):
                raise DataError(
                    f"{stored.path}: {name} has {counted(found, 'row')}, and {VOCABULARY} {wanted:,} pieces"
                )
        weights = bundle_weights(stored, config.model, rows, shares_embeddings=shares)
        stored.check_rest(config.model.d_model, config.model.positions)
    except (IndexError, RuntimeError, TypeError) as error:
        raise DataError(f"{stored.path} does not fit {CONFIG}: {shown(error, quote=False)}") from None
    return weights


def _load(files: Sequence[Path]) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for path in files:
        try:
            weights |= load_file(path)
        except OSError as error:
            raise read_error(path, error) from None
        except SafetensorError as error:
            raise DataError(f"{path} is not a safetensors file ({shown(error, quote=False)}); {_ADVICE}") from None
    return weights


def check_architecture(content: Mapping[str, Any], path: Path) -> None:
    """Refuse what a bundle cannot hold.

    Args:
        content: A whole ``config.json``.
        path: The file, for errors.

    Raises:
        DataError: It is another architecture, or has a part that a bundle lacks.
    """
    stated = _section(content, "model")
    named = stated.get("architecture", "custom")
    kinds = [_section(stated, side).get(f"{side}_type", named) for side in SIDES]
    if named not in ("transformer", "custom") or any(kind != "transformer" for kind in kinds):
        kind = named if named != "custom" else " and ".join(map(str, kinds))
        raise DataError(
            f"{path}: architecture is {shown(kind)}: only transformer, an encoder and a decoder, can be imported"
        )
    for name, values in _REQUIRED.items():
        for section in (stated, *(_section(stated, part) for part in (*SIDES, "embeddings"))):
            if section.get(name, values[0]) not in values:
                raise DataError(f"{path}: {name} is {shown(section[name])}, and a bundle cannot hold that")


def _section(stated: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = stated.get(name)
    return found if isinstance(found, dict) else {}


def _value(stated: Mapping[str, Any], side: str, name: str, default: Any) -> Any:
    """A value of a side, or else that of the model, or else eole's default."""
    return _section(stated, side).get(name, stated.get(name, default))


def _common(stated: Mapping[str, Any], name: str, default: Any, path: Path) -> Any:
    """A value that both sides have.

    Raises:
        DataError: They differ.
    """
    one, other = (_value(stated, side, name, default) for side in SIDES)
    if one != other:
        raise DataError(
            f"{path}: {name} is {shown(one)} in the encoder and {shown(other)} in the decoder: a bundle has one"
        )
    return one


def read_config(content: Mapping[str, Any], path: Path, *, attention_bias: bool) -> Config:
    """The configuration of the bundle.

    Args:
        content: A whole ``config.json``, whose architecture :func:`check_architecture` has seen.
        path: The file, for errors.
        attention_bias: Whether a projection of attention has a bias. The file may state biases that training left out.

    Raises:
        DataError: A bundle cannot hold the model.
    """
    stated = _section(content, "model")
    sizes = {name: _common(stated, name, default, path) for name, default in _SIZES.items() if name != "layers"}
    width, wide, heads = (whole_number(sizes, name, path) for name in ("hidden_size", "transformer_ff", "heads"))
    head = _common(stated, "head_dim", None, path)
    if _common(stated, "heads_kv", None, path) not in (None, heads):
        raise DataError(f"{path}: heads_kv is not the number of heads, {heads}, and a bundle cannot hold that")
    if width % 2 or (head is None and width % heads):
        raise DataError(f"{path}: hidden_size {width} is odd, or not a multiple of the {heads} heads")
    head = width // heads if head is None else whole_number({"head_dim": head}, "head_dim", path)
    depths = [whole_number({"layers": _value(stated, side, "layers", 2)}, "layers", path) for side in SIDES]
    model = {
        **both_depths(depths),
        "d_model": width,
        "d_ff": wide,
        "num_heads": heads,
        "d_k": head,
        "d_v": head,
        "norm": "pre",
        "norm_epsilon": _common(stated, "norm_eps", 1e-5, path),
        "activation": _named(stated, "mlp_activation_fn", "relu", _ACTIVATIONS, path),
        "positions": _named(stated, "position_encoding_type", "SinusoidalInterleaved", _POSITIONS, path),
        "source_end": False,
        "attention_bias": attention_bias,
        "output_bias": True,
        "tie_embeddings": _ties(stated),
        "vocab_multiple": 1,
    }
    return build_config(model, _search(_section(content, "inference"), path), path)


def _named(stated: Mapping[str, Any], name: str, default: str, values: Mapping[str, str], path: Path) -> str:
    """What a bundle calls a value.

    Raises:
        DataError: A bundle does not have it.
    """
    own = _section(stated, "embeddings") if name == "position_encoding_type" else {}
    found = own[name] if name in own else _common(stated, name, default, path)
    if not isinstance(found, str) or found not in values:
        raise DataError(f"{path}: {name} is {shown(found)}: a bundle has one of {', '.join(values)}")
    return values[found]


def _ties(stated: Mapping[str, Any]) -> str:
    if not stated.get("share_decoder_embeddings"):
        return "none"
    return "all" if stated.get("share_embeddings") else "target"


def _search(stated: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The search of ``eole predict``, as nearly as ours has it."""
    kind = stated.get("length_penalty", "avg")
    if kind not in ("avg", "wu", "none"):
        raise DataError(f"{path}: length_penalty is {shown(kind)}, not avg, wu or none")
    return {
        "beam_size": stated.get("beam_size", 5),
        "length_penalty": 0.0 if kind == "none" else stated.get("alpha", 1.0),
        "length_offset": 5.0 if kind == "wu" else 0.0,
        "min_tokens": stated.get("min_length", 0),
    }


def check_transforms(content: Mapping[str, Any], path: Path) -> None:
    """Refuse transforms that change text when eole translates, except SentencePiece.

    Raises:
        DataError: There is one.
    """
    corpora = [corpus for corpus in _section(content, "data").values() if isinstance(corpus, dict)]
    lists = [one.get("transforms") for one in (content, *corpora)]
    for name in [name for names in lists if isinstance(names, list) for name in names]:
        if name not in ("sentencepiece", *_OF_TRAINING):
            raise DataError(f"{path}: the transform {shown(name)} changes text, and a bundle has only sentencepiece")
    options = _section(_section(content, "transforms_configs"), "sentencepiece")
    for name in ("src_vocab_threshold", "tgt_vocab_threshold"):
        if options.get(name):
            raise DataError(f"{path}: {name} is {shown(options[name])}, and a bundle cannot hold that")


def sentencepiece_models(content: Mapping[str, Any], folder: Path) -> list[Path]:
    """The SentencePiece models of source and target that a model names, those of the folder first.

    Raises:
        DataError: It names none, or a file is missing.
    """
    options = _section(_section(content, "transforms_configs"), "sentencepiece")
    sides = ("src", "src") if content.get("share_vocab") else ("src", "tgt")
    found = []
    for side in sides:
        stated = options.get(f"{side}_subword_model")
        if not isinstance(stated, str) or not stated:
            raise DataError(
                f"{folder / CONFIG} names no SentencePiece model ({side}_subword_model): give it with --sentencepiece"
            )
        places = (folder / Path(stated).name, Path(stated.replace("${MODEL_PATH}", str(folder))))
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            raise DataError(f"{folder} has no {Path(stated).name}: give the SentencePiece model with --sentencepiece")
        found.append(path)
    return found
