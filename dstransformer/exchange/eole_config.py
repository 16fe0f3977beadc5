"""What the ``config.json`` of a model of eole says: its architecture, as a bundle has it, and its transforms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dstransformer.config import Config, complete_config
from dstransformer.errors import ConfigError, DataError, shown
from dstransformer.exchange.import_record import whole_number

CONFIG = "config.json"

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
    sections = {
        "model": {
            "num_layers": depths[0],
            "encoder_layers": depths[0] if depths[0] != depths[1] else None,
            "decoder_layers": depths[1] if depths[0] != depths[1] else None,
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
        },
        "decoding": _search(_section(content, "inference"), path),
    }
    try:
        return complete_config(sections, str(path))
    except ConfigError as error:
        raise DataError(str(error)) from None


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
