"""``dst import hf``: a folder of a ``transformers.MarianMTModel``, such as an OPUS-MT model, as a bundle.

What ``dst export hf`` wrote comes back with its tokenizer, byte for byte. Its weights stay in Marian's form, see
:mod:`dstransformer.exchange.marian_weights`.

Reading it needs nothing of Hugging Face but safetensors: its files are weights, JSON and SentencePiece models.
Weights in a pickle are read by PyTorch's reader for weights, which calls nothing that the pickle names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dstransformer.config import Config, ModelConfig
from dstransformer.data import Direction, Tokenizer
from dstransformer.data.directions import common_language
from dstransformer.data.tokenizer import MAX_BYTES, SRC_TOKENIZER_NAME, TOKENIZER_NAME
from dstransformer.errors import DataError, UserError, counted, shown
from dstransformer.exchange.formats import check_settings
from dstransformer.exchange.hf_export import (
    CONFIG,
    GENERATION,
    SOURCE_MODEL,
    TARGET_MODEL,
    TARGET_VOCABULARY,
    TOKENIZER_CONFIG,
    VOCABULARY,
    WEIGHTS,
)
from dstransformer.exchange.hf_tokenizer import MARIAN_MT
from dstransformer.exchange.import_record import build_config, imported_from, whole_number, write_bundle
from dstransformer.exchange.marian_weights import EPSILON, Load, bundle_weights
from dstransformer.exchange.vocabularies import (
    TAG,
    Vocabulary,
    absent_pieces,
    exact_vocabulary,
    numbered_model,
    order_vocabulary,
)
from dstransformer.io.files import read_bounded, read_error
from dstransformer.io.json_text import read_record
from dstransformer.io.products import check_bundle_folder, check_kind, export_tool, read_marker
from dstransformer.model import Bundle
from dstransformer.model.transformer import sinusoidal_table

#: Weights as PyTorch pickles them, in older models.
PICKLED = "pytorch_model.bin"

_ADVICE = "if it is damaged, download the model again"

#: What a ``MarianConfig`` may ask for and a bundle has. What it does not state has the first value.
_HOLDS: dict[str, tuple[object, ...]] = {
    "activation_function": ("gelu", "relu", "swish", "silu"),
    "scale_embedding": (True,),
    "static_position_embeddings": (True,),
    "normalize_before": (False,),
    "normalize_embedding": (False,),
    "add_final_layer_norm": (False,),
    "add_bias_logits": (False,),
    "is_encoder_decoder": (True,),
}

#: Under which other names a weight may be stored: one that several share is stored once.
_OTHER_NAMES = {
    "model.shared.weight": ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
    "model.encoder.embed_tokens.weight": ("model.shared.weight",),
    "model.decoder.embed_tokens.weight": ("model.shared.weight", "lm_head.weight"),
}

#: The names of the width, the heads, the feed-forward width, and the layers of encoder and decoder.
_SIZES = ("d_model", "encoder_attention_heads", "encoder_ffn_dim", "encoder_layers", "decoder_layers")


def import_hf(
    folder: Path, out: Path, *, src_lang: str | None = None, tgt_lang: str | None = None, overwrite: bool = False
) -> tuple[Bundle, list[str]]:
    """Write a bundle of a model of Hugging Face's ``transformers``.

    Args:
        folder: The folder of a ``MarianMTModel`` and its ``MarianTokenizer``.
        out: The bundle; it appears once it is complete.
        src_lang: Code of the source language; None takes that of the folder's tokenizer, if it states one.
        tgt_lang: That of the target language.
        overwrite: Whether to replace a bundle.

    Returns:
        The bundle, and the pieces of its SentencePiece models that its vocabulary lacks.

    Raises:
        DataError: The folder lacks a file or holds another model, or a bundle cannot hold it; or ``out`` is something
            else.
        StorageError: The bundle cannot be written.
    """
    check_bundle_folder(out, "--out", overwrite=overwrite)
    files = _find_files(folder)
    weights_file = files[1]
    stated = read_record(folder / CONFIG, dict, advice=_ADVICE)
    tokenizer, (source, target), absent = _open_tokenizer(folder, stated)
    config = _read_config(stated, folder / CONFIG)
    misfit = f"{weights_file} does not fit {CONFIG}"
    with _open_weights(weights_file) as load:
        _check_positions(load, config.model, weights_file)
        try:
            weights = bundle_weights(load, config.model, source.rows, target.rows)
        except (IndexError, RuntimeError) as error:
            raise DataError(f"{misfit}: {shown(error, quote=False)}") from None
    named, exported = _tokenizer_config(folder), read_marker(folder)
    languages = (
        src_lang or _text(named.get("source_lang")) or _text(exported.get("src_lang")),
        tgt_lang or _text(named.get("target_lang")) or _text(exported.get("tgt_lang")),
    )
    tags = [name for name in source.names if TAG.fullmatch(name)]
    record = _provenance(files, languages, tags)
    return write_bundle(out, weights, config, tokenizer, record, misfit=misfit, overwrite=overwrite), absent


def _find_files(folder: Path) -> list[Path]:
    """The files of a model, of which the first is its configuration and the second has its weights.

    Raises:
        DataError: The folder lacks one.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: name one with {CONFIG}, {WEIGHTS} and the files of a tokenizer")
    weights = PICKLED if (folder / PICKLED).is_file() and not (folder / WEIGHTS).is_file() else WEIGHTS
    names = [CONFIG, weights, SOURCE_MODEL]
    joint = _is_joint_export(folder)
    if joint is None:
        names += [TARGET_MODEL, VOCABULARY, *([TARGET_VOCABULARY] if _is_separate(folder) else [])]
    elif not joint:
        names.append(TARGET_MODEL)
    for name in names:
        if (folder / name).is_file():
            continue
        if name == WEIGHTS and any((folder / f"{file}.index.json").is_file() for file in (WEIGHTS, PICKLED)):
            raise DataError(f"{folder} has its weights in several files: save them in one, {WEIGHTS}")
        if name == SOURCE_MODEL and (folder / "tokenizer.json").is_file():
            raise DataError(
                f"{folder} has no {name}, but a tokenizer.json, which does not hold the SentencePiece models: "
                "copy them into the folder"
            )
        raise DataError(f"{folder} has no {name}: it is not the folder of a MarianMTModel with its MarianTokenizer")
    return [folder / name for name in names]


def _is_separate(folder: Path) -> bool:
    """Whether each side has a vocabulary of its own. Where the tokenizer does not say so, it reads only one."""
    return _tokenizer_config(folder).get("separate_vocabs") is True


def _is_joint_export(folder: Path) -> bool | None:
    """Whether what ``dst export hf`` wrote with fast tokenizers has a joint vocabulary; None of any other folder.

    Raises:
        DataError: A newer version wrote it.
    """
    if export_tool(folder) != "hf" or (folder / VOCABULARY).is_file():
        return None
    return check_kind(folder, "export", _ADVICE).get("joint_vocabulary") is True


def _read_config(stated: Mapping[str, Any], path: Path) -> Config:
    """The configuration of the bundle of a model whose ``config.json`` states this.

    Raises:
        DataError: A bundle cannot hold it.
    """
    if stated.get("model_type") != "marian":
        named = ", ".join(map(str, stated.get("architectures") or [])) or stated.get("model_type")
        raise DataError(f"{path} is of {shown(named)}: only MarianMTModel can be imported")
    for name in ("ffn_dim", "attention_heads"):
        encoder, decoder = (whole_number(stated, f"{side}_{name}", path) for side in ("encoder", "decoder"))
        if encoder != decoder:
            raise DataError(
                f"{path}: encoder_{name} is {encoder} and decoder_{name} {decoder}: a bundle has one for both"
            )
    settings = {name: stated.get(name, values[0]) for name, values in _HOLDS.items()}
    check_settings(settings.items(), _HOLDS, f"{path}: ", "a bundle")
    shares = stated.get("share_encoder_decoder_embeddings", True)
    if shares and _is_separate(path.parent):
        raise DataError(
            f"{path}: share_encoder_decoder_embeddings is {shares}, but each side has a vocabulary "
            f"({TARGET_VOCABULARY}): one matrix cannot be for both"
        )
    activation = settings["activation_function"]
    ties = stated.get("tie_word_embeddings", True)
    return build_config(
        stated,
        path,
        _SIZES,
        _search(path.parent, stated),
        **{name: stated.get(name, 0.0) for name in ("dropout", "attention_dropout", "activation_dropout")},
        activation={"silu": "swish"}.get(activation, activation),
        norm_epsilon=EPSILON,
        positions="sinusoidal",
        start="embedding",
        tie_embeddings=("all" if shares else "target") if ties else "none",
    )


def _search(folder: Path, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The search that ``generate`` would do by default, as nearly as ours has it."""
    path = folder / GENERATION
    settings = {**stated, **(read_record(path, dict, advice=_ADVICE) if path.is_file() else {})}
    settings = {name: value for name, value in settings.items() if value is not None}
    limits = (stated.get("max_position_embeddings"), _tokenizer_config(folder).get("model_max_length"))
    longest = min((limit for limit in limits if type(limit) is int and limit > 1), default=512)
    return {
        "beam_size": settings.get("num_beams", 1),
        "length_penalty": settings.get("length_penalty", 1.0),
        "length_offset": 0.0,
        "min_tokens": settings.get("min_new_tokens", 0),
        "max_input_tokens": longest - 1,
    }


def _open_tokenizer(folder: Path, stated: Mapping[str, Any]) -> tuple[Tokenizer, list[Vocabulary], list[str]]:
    """The tokenizer, the vocabularies of source and target, and the pieces of its models that these lack."""
    if (joint := _is_joint_export(folder)) is not None:
        tokenizer = Tokenizer.load(folder / SOURCE_MODEL)
        if not joint:
            tokenizer = Tokenizer.load(folder / TARGET_MODEL, src=tokenizer)
        return tokenizer, [exact_vocabulary(tokenizer.src), exact_vocabulary(tokenizer)], []
    vocabularies = _open_vocabularies(folder, stated)
    names = (SOURCE_MODEL, TARGET_MODEL)
    try:
        models = [Tokenizer(read_bounded(folder / name, MAX_BYTES), str(folder / name)).proto() for name in names]
    except OSError as error:
        raise read_error(folder, error) from None
    absent = [piece for pair in zip(models, vocabularies, strict=True) for piece in absent_pieces(*pair)]
    source, target = map(numbered_model, models, vocabularies, names)
    return Tokenizer(target, TOKENIZER_NAME, Tokenizer(source, SRC_TOKENIZER_NAME)), vocabularies, absent


def _open_vocabularies(folder: Path, stated: Mapping[str, Any]) -> list[Vocabulary]:
    """The vocabularies of source and target, which may be the same."""
    pad, end = (whole_number(stated, f"{name}_token_id", folder / CONFIG, 0) for name in ("pad", "eos"))
    start = whole_number({"decoder_start_token_id": pad, **stated}, "decoder_start_token_id", folder / CONFIG, 0)
    if end in (start, pad):
        raise DataError(f"{folder / CONFIG}: eos_token_id {end} is the padding, or what decoding starts with, too")
    of_source = _read_numbers(folder / VOCABULARY, stated, "vocab_size")
    if not _is_separate(folder):
        return [order_vocabulary(of_source, pad=pad, start=start, end=end, path=folder / VOCABULARY)] * 2
    of_target = _read_numbers(folder / TARGET_VOCABULARY, stated, "decoder_vocab_size")
    target = order_vocabulary(of_target, pad=pad, start=start, end=end, path=folder / TARGET_VOCABULARY)
    names = {number: name for name, number in of_target.items()}  # config.json has the numbers of the target's pieces
    if names[end] not in of_source:
        raise DataError(f"{folder / VOCABULARY} has no piece {shown(names[end])} for the end of a sentence")
    pad = of_source.get(names[pad], pad)
    start, end = of_source.get(names[start], pad), of_source[names[end]]
    return [order_vocabulary(of_source, pad=pad, start=start, end=end, path=folder / VOCABULARY), target]


def _read_numbers(path: Path, stated: Mapping[str, Any], size: str) -> dict[str, int]:
    """The number of each piece of a vocabulary, of which ``config.json`` states the size by this name."""
    numbers = read_record(path, dict, advice=_ADVICE)
    if not all(type(number) is int for number in numbers.values()):
        raise DataError(f"{path} does not map pieces to numbers: {shown(numbers)}")
    rows = stated.get(size) or stated.get("vocab_size")
    if len(numbers) != rows:
        raise DataError(f"{path} has {counted(len(numbers), 'piece')}, and the model {shown(rows)} ({CONFIG})")
    return numbers


@contextmanager
def _open_weights(path: Path) -> Iterator[Load]:
    """Within it, weights can be read by their names.

    Of safetensors each maps the file anew, so that no read page stays in memory.
    """
    try:
        pickled = _read_pickled(path) if path.name == PICKLED else None
        if pickled is None:
            with safe_open(path, "pt") as file:
                names = set(file.keys())
        else:
            names = set(pickled)

        def load(name: str) -> Tensor:
            stored = next((alias for alias in (name, *_OTHER_NAMES.get(name, ())) if alias in names), None)
            if stored is None:
                raise DataError(f"{path} has no weight {name}: it does not fit {CONFIG}; {_ADVICE}")
            if pickled is None:
                with safe_open(path, "pt") as mapped:
                    weight: Tensor = mapped.get_tensor(stored)
            else:
                weight = pickled[stored]
            if not weight.is_floating_point():
                raise DataError(f"{path}: {name} is of type {weight.dtype}, not of floating-point numbers")
            return weight

        yield load
    except OSError as error:
        raise read_error(path, error) from None
    except SafetensorError as error:
        raise DataError(f"{path} is not a safetensors file ({shown(error, quote=False)}); {_ADVICE}") from None


def _read_pickled(path: Path) -> Mapping[str, Tensor]:
    """The weights in a pickle, which may hold nothing else.

    Raises:
        DataError: It holds something else, or is damaged.
        OSError: It cannot be read.
    """
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # of the reader, of the archive, of its content
        why = shown(str(error).strip().partition("\n")[0] or type(error).__name__, quote=False, limit=200)
        raise DataError(f"{path} does not hold weights and nothing else ({why}); {_ADVICE}") from None
    if not isinstance(weights, Mapping) or not all(isinstance(weight, Tensor) for weight in weights.values()):
        raise DataError(f"{path} does not hold weights by their names; {_ADVICE}")
    return weights


def _check_positions(load: Load, model: ModelConfig, path: Path) -> None:
    """Refuse positions other than sinusoids, if the weights have any."""
    for side in ("encoder", "decoder"):
        try:
            positions = load(f"model.{side}.embed_positions.weight").float()
        except DataError:
            continue
        table = sinusoidal_table(len(positions), model.d_model, torch.float32, torch.device("cpu"))
        expected = torch.cat((table[:, 0::2], table[:, 1::2]), dim=1)
        if positions.shape != expected.shape or not torch.allclose(positions, expected, atol=2e-3):
            raise DataError(f"{path}: the positions of the {side} are not sinusoids, and a bundle cannot hold them")


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / TOKENIZER_CONFIG
    return read_record(path, dict, advice=_ADVICE) if path.is_file() else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _provenance(files: list[Path], languages: tuple[str | None, str | None], tags: list[str]) -> dict[str, Any]:
    record = imported_from(MARIAN_MT, files, languages)
    src_lang = languages[0]
    if tags:
        if src_lang is None:
            raise UserError(
                f"{files[0].parent} translates into several languages ({', '.join(tags[:3])} …), and does not say from "
                "which: give --src-lang, mul for several"
            )
        directions = [Direction(src_lang, tag[2:-2], tag) for tag in tags]
        record["directions"] = [vars(direction) for direction in directions]
        record["tgt_lang"] = common_language(direction.tgt_lang for direction in directions)
    return record
