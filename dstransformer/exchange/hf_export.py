"""``dst export hf``: a bundle as a folder that ``transformers`` loads as a ``MarianMTModel`` with a fast tokenizer.

A fast tokenizer has one vocabulary. If each language has its own, the folder's tokenizer is the source's, and the
target's is in :data:`TARGET`: ``AutoTokenizer.from_pretrained(folder, subfolder="target")``. Two models that number the
same pieces, as those of OPUS-MT do, stay what they are: the files of a ``MarianTokenizer``. So do all that were
imported from such files.

Beside fast tokenizers lie the SentencePiece models that they were made of. Only ``dst import hf`` reads those.

Writing it needs nothing of Hugging Face but safetensors: its files are weights, JSON and SentencePiece models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dstransformer.data import BOS_ID, EOS_ID, PAD_ID
from dstransformer.decoding.beam import FIRST_PIECE
from dstransformer.exchange.formats import check_bundle, replace_export
from dstransformer.exchange.hf_tokenizer import SPACE, is_marian, tokenizer_config, tokenizer_json
from dstransformer.exchange.marian_weights import marian_holds, marian_weights
from dstransformer.exchange.model_card import model_card
from dstransformer.exchange.weights import length_exponent
from dstransformer.io.products import MARKER, SIGNATURE, check_export_folder
from dstransformer.model import Bundle, open_bundle, save_weights

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
GENERATION, TOKENIZER, TOKENIZER_CONFIG = "generation_config.json", "tokenizer.json", "tokenizer_config.json"

#: The folder's own folder for the target's tokenizer.
TARGET = "target"

#: What a ``MarianTokenizer`` has in place of :data:`TOKENIZER`.
MARIAN_FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json")
SOURCE_MODEL, TARGET_MODEL, VOCABULARY, TARGET_VOCABULARY = MARIAN_FILES

#: All files of the folder with a joint vocabulary, and what it holds besides if each language has one.
FILES = (MARKER, CONFIG, WEIGHTS, GENERATION, TOKENIZER, TOKENIZER_CONFIG, SOURCE_MODEL, CARD)
TARGET_FILES = (f"{TARGET}/{TOKENIZER}", f"{TARGET}/{TOKENIZER_CONFIG}", TARGET_MODEL)

#: Maximum input of a model that does not limit it (``decoding.max_input_tokens`` 0), in tokens.
UNLIMITED_INPUT = 1024

#: The special pieces, which both configurations name.
_TOKENS = {
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "forced_eos_token_id": EOS_ID,
    "decoder_start_token_id": BOS_ID,
}


def export_hf(
    source: str | Path | Bundle, out: Path, *, overwrite: bool = False, finish: Callable[[Path], None] | None = None
) -> None:
    """Write a bundle as a folder for Hugging Face's ``transformers``.

    Args:
        source: See :func:`dstransformer.model.open_bundle`.
        out: The folder; it appears once it is complete.
        overwrite: Whether to replace an earlier export.
        finish: Called with the complete folder before it appears, as to sign it.

    Raises:
        DataError: The source is not a bundle, or a ``MarianMTModel`` cannot hold it; or ``out`` is something else.
        StorageError: The folder cannot be written.
    """
    check_export_folder(out, "hf", (*FILES, *TARGET_FILES, *MARIAN_FILES, SIGNATURE), overwrite=overwrite)
    bundle = open_bundle(source)
    holds = marian_holds(bundle.model, "sinusoidal", ("embedding", "zeros"))
    check_bundle(bundle, holds, "a MarianMTModel", "`dst export ct2` holds more")
    texts = {
        CONFIG: _json(marian_config(bundle)),
        GENERATION: _json(generation_config(bundle)),
        **_tokenizers(bundle),
        CARD: model_card(bundle),
    }
    weights = marian_weights(bundle.load_weights(), bundle.model)

    def write(folder: Path) -> dict[str, object]:
        for name, text in texts.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        tokenizer = bundle.tokenizer
        (tokenizer if tokenizer.is_joint else tokenizer.src).save(folder / SOURCE_MODEL)
        if not tokenizer.is_single:
            tokenizer.tgt.save(folder / TARGET_MODEL)
        save_weights(folder / WEIGHTS, weights, {"format": "pt"})
        return {"joint_vocabulary": tokenizer.is_joint}

    replace_export(out, "hf", bundle, write, overwrite=overwrite, finish=finish)


def _tokenizers(bundle: Bundle) -> dict[str, str]:
    """The tokenizer's files of text, or those of both, by their paths in the folder."""
    src, tgt = bundle.tokenizer.src, bundle.tokenizer
    if is_marian(bundle):
        vocabularies = {VOCABULARY: src} if tgt.shares_ids else {VOCABULARY: src, TARGET_VOCABULARY: tgt}
        config = {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": bundle.src_lang,
            "target_lang": bundle.tgt_lang,
            "separate_vocabs": not tgt.shares_ids,
            "model_max_length": longest_input(bundle) + 1,
            "unk_token": "<unk>",
            "eos_token": "</s>",
            "pad_token": "<pad>",
        }
        texts = {TOKENIZER_CONFIG: _json(config)}
        for name, tokenizer in vocabularies.items():
            pieces = enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))
            # A tag stands without the space before it.
            ids = {text.removeprefix(SPACE) if text in tokenizer.symbols else text: piece for piece, text in pieces}
            texts[name] = _json(ids)
        return texts
    name = "tokenizer" if tgt.is_single else "source tokenizer"
    texts = {
        TOKENIZER: _json(tokenizer_json(src, name)),
        TOKENIZER_CONFIG: _json(tokenizer_config(src, longest_input(bundle) + 1)),
    }
    if not tgt.is_single:
        texts[f"{TARGET}/{TOKENIZER}"] = _json(tokenizer_json(tgt, "target tokenizer"))
        texts[f"{TARGET}/{TOKENIZER_CONFIG}"] = _json(tokenizer_config(tgt, longest_output(bundle)))
    return texts


def longest_input(bundle: Bundle) -> int:
    """Maximum tokens of an input, without its end."""
    return bundle.decoding.max_input_tokens or UNLIMITED_INPUT


def longest_output(bundle: Bundle) -> int:
    """Maximum tokens of an output, with its end."""
    return longest_input(bundle) + 1 + bundle.decoding.max_extra_tokens


def marian_config(bundle: Bundle) -> dict[str, Any]:
    """The content of ``config.json``."""
    model, tokenizer = bundle.model, bundle.tokenizer
    sides = {
        f"{side}_{name}": value
        for side, depth in (("encoder", model.encoder_depth), ("decoder", model.decoder_depth))
        for name, value in (
            ("layers", depth),
            ("ffn_dim", model.d_ff),
            ("attention_heads", model.num_heads),
            ("layerdrop", 0.0),
        )
    }
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "d_model": model.d_model,
        **sides,
        "num_hidden_layers": model.encoder_depth,
        "activation_function": model.activation,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        "init_std": model.d_model**-0.5,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "max_position_embeddings": longest_output(bundle) + 1,
        "vocab_size": model.embedding_rows(tokenizer.src.vocab_size),
        "decoder_vocab_size": model.embedding_rows(tokenizer.vocab_size),
        "share_encoder_decoder_embeddings": model.tie_embeddings == "all",
        "tie_word_embeddings": model.tie_embeddings != "none",
        **_TOKENS,
        "use_cache": True,
        "dtype": "float32",
    }


def generation_config(bundle: Bundle) -> dict[str, Any]:
    """The content of ``generation_config.json``: our beam search, as nearly as ``generate`` has it.

    ``generate`` divides log-probabilities by ``length ** length_penalty``, see :mod:`dstransformer.exchange.weights`.
    """
    rows = bundle.model.embedding_rows(bundle.tokenizer.vocab_size)
    return {
        "num_beams": bundle.decoding.beam_size,
        "do_sample": False,
        "length_penalty": round(length_exponent(bundle.decoding), 4),
        "early_stopping": False,
        "max_length": longest_output(bundle) + 1,
        **({"min_new_tokens": bundle.decoding.min_tokens} if bundle.decoding.min_tokens else {}),
        "suppress_tokens": [*range(FIRST_PIECE), *range(bundle.tokenizer.vocab_size, rows)],
        **_TOKENS,
    }


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
