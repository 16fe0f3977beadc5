"""A SentencePiece model as the ``tokenizer.json`` of Hugging Face's ``tokenizers``: the same ids for the same text.

``MarianTokenizer`` would hold the SentencePiece model itself, but not what :class:`Tokenizer` does before it (control
and invisible characters), and it reads ``>>de<<`` and ``</s>`` in a text as codes. The file written here does neither,
and needs no SentencePiece to be read.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dstransformer.data import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer
from dstransformer.data.subwords import merge_characters
from dstransformer.data.tokenizer import BLANK_CHARACTERS, CONTROL_CHARACTERS, INVISIBLE_CHARACTERS
from dstransformer.errors import DataError
from dstransformer.model import Bundle

#: What the provenance of a bundle calls a model that ``dst import hf`` has read.
MARIAN_MT = "MarianMTModel"

#: SentencePiece's name of a space.
SPACE = "▁"

#: The first character of text that spells a special piece or a byte piece. It would be read as that piece.
_SPELLED = "(?:/s|s|unk|pad|0x[0-9A-F]{2})>"
_SPELLED_PIECE = f"<(?={_SPELLED})"

#: The same, where a text between two symbols begins, or a word after a symbol, and if the text is that piece only.
_SPELLED_CHUNK = f"\\A<(?={_SPELLED}(?:{SPACE}|\\z))"

#: The special ids and their texts, in the order of the ids.
SPECIAL_TOKENS = {"pad_token": PAD_ID, "unk_token": UNK_ID, "bos_token": BOS_ID, "eos_token": EOS_ID}


def is_marian(bundle: Bundle) -> bool:
    """Whether the tokenizer is written as a ``MarianTokenizer``.

    So it is if two models number the same pieces, or if they were those of one.
    """
    tokenizer = bundle.tokenizer
    if tokenizer.is_joint:
        return False
    imported = bundle.provenance.get("imported")
    return tokenizer.shares_ids or (isinstance(imported, Mapping) and imported.get("format") == MARIAN_MT)


def tokenizer_json(tokenizer: Tokenizer, name: str = "tokenizer") -> dict[str, Any]:
    """The content of ``tokenizer.json``. Encoding adds the end of the sentence.

    Args:
        tokenizer: The tokenizer; of its two sides only the target's.
        name: What errors call it.

    Raises:
        DataError: The SentencePiece model does something that the file cannot express.
    """
    _check(tokenizer, name)
    proto = tokenizer.proto()
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    is_bpe = tokenizer.model_type == "bpe"
    first, end = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": pieces[EOS_ID], "type_id": 0}}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, "content": pieces[token], **flags} for token in SPECIAL_TOKENS.values()],
        "normalizer": _normalizer(proto.normalizer_spec),
        "pre_tokenizer": _pre_tokenizer(tokenizer.scores(), tokenizer.symbols, is_bpe=is_bpe),
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, end],
            "pair": [first, {"Sequence": {"id": "B", "type_id": 0}}, end],
            "special_tokens": {pieces[EOS_ID]: {"id": pieces[EOS_ID], "ids": [EOS_ID], "tokens": [pieces[EOS_ID]]}},
        },
        "decoder": _decoder(proto.normalizer_spec),
        "model": _bpe(tokenizer, pieces) if is_bpe else _unigram(tokenizer, pieces),
    }


def tokenizer_config(tokenizer: Tokenizer, max_length: int) -> dict[str, Any]:
    """The content of ``tokenizer_config.json``.

    Args:
        tokenizer: The tokenizer.
        max_length: The longest input of the model, or its longest output, in tokens with their end.
    """
    pieces = tokenizer.pieces(list(SPECIAL_TOKENS.values()))
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **dict(zip(SPECIAL_TOKENS, pieces, strict=True)),
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": max_length,
        "padding_side": "right",
        "split_special_tokens": True,  # "</s>" in a text is text
    }


def _check(tokenizer: Tokenizer, name: str) -> None:
    proto, kind = tokenizer.proto(), tokenizer.model_type
    spec, training = proto.normalizer_spec, proto.trainer_spec
    symbols, scores = tokenizer.symbols, tokenizer.scores()
    inner = {symbol[:length] for symbol in symbols for length in range(1, len(symbol))}  # what a symbol begins with
    problem = None
    if kind not in ("bpe", "unigram"):
        problem = f"it is a {kind} model, not bpe or unigram"
    elif not spec.remove_extra_whitespaces or not spec.escape_whitespaces or training.treat_whitespace_as_suffix:
        problem = "it treats spaces in an unusual way (remove_extra_whitespaces, escape_whitespaces, whitespace suffix)"
    elif odd := [symbol for symbol in symbols if re.search(_SPELLED_PIECE, symbol)]:
        problem = f"its symbol {odd[0]!r} holds the name of a special piece"
    elif kind == "bpe" and (odd := [letter for piece in scores for letter in piece if letter not in scores]):
        problem = f"it merges {odd[0]!r}, which is not a piece of its own"
    elif kind == "unigram" and (odd := [one for one in symbols if any(one[at:] in inner for at in range(1, len(one)))]):
        problem = f"its symbol {odd[0]!r} can overlap with another one"
    elif kind == "bpe" and symbols and (odd := [one for one in scores if merge_characters(one, scores)[0] != [one]]):
        problem = f"it has symbols, and its merges make something else of {odd[0]!r} than the piece of that text"
    elif len(set(tokenizer.pieces(range(tokenizer.vocab_size)))) < tokenizer.vocab_size:
        problem = "two of its pieces have one name"
    if problem is not None:
        raise DataError(
            f"the {name} cannot be written for Hugging Face: {problem}; `dst export ct2` keeps SentencePiece itself"
        )


def _normalizer(spec: Any) -> dict[str, Any]:
    """What :class:`Tokenizer` does to a text, then what SentencePiece does."""
    steps = [_replace({"Regex": INVISIBLE_CHARACTERS}, ""), _replace({"Regex": CONTROL_CHARACTERS}, " ")]
    steps.append(_replace({"Regex": f"\\A[{BLANK_CHARACTERS}]+\\z"}, ""))
    if spec.precompiled_charsmap and ("nfkc" in spec.name or spec.name == "nfc"):
        steps.append({"type": "NFC"})  # the next step does not compose all that SentencePiece does, Hangul for one
    if spec.precompiled_charsmap:
        encoded = base64.b64encode(spec.precompiled_charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    steps += [
        _replace({"Regex": "^ +"}, ""),
        _replace({"Regex": " +"}, SPACE),
        _replace({"Regex": f"{SPACE}+$"}, ""),
    ]
    if spec.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE})
    return {"type": "Sequence", "normalizers": steps}


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _pre_tokenizer(scores: Mapping[str, object], symbols: Collection[str], *, is_bpe: bool) -> dict[str, Any] | None:
    """Symbols, so that each becomes its piece, and words, so that their pieces can be cached.

    There are no words if a piece reaches over a space. SentencePiece finds symbols from left to right, at each place
    the longest, and divides what is between them, as regular expressions with alternatives do.
    """
    steps = []
    if symbols:
        longest_first = sorted(symbols, key=len, reverse=True)
        steps.append(_split({"Regex": "|".join(map(re.escape, longest_first))}, "Isolated"))
    if symbols or not is_bpe:
        steps.append(_split({"Regex": _SPELLED_CHUNK if is_bpe else _SPELLED_PIECE}, "MergedWithPrevious"))
    if not any(SPACE in piece[1:] for piece in (*scores, *symbols)):
        steps.append(_split({"String": SPACE}, "MergedWithNext"))
    return {"type": "Sequence", "pretokenizers": steps} if steps else None


def _split(pattern: dict[str, str], behavior: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


def _decoder(spec: Any) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [_replace({"String": SPACE}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if spec.add_dummy_prefix:
        steps.append(_replace({"Regex": "^ +"}, ""))
    # Byte pieces can spell a line feed.
    steps += [_replace({"Regex": INVISIBLE_CHARACTERS}, ""), _replace({"Regex": CONTROL_CHARACTERS}, " ")]
    return {"type": "Sequence", "decoders": steps}


def _bpe(tokenizer: Tokenizer, pieces: Sequence[str]) -> dict[str, Any]:
    """SentencePiece first merges what gives the piece of the highest score. So the merges are listed by that."""
    scores = tokenizer.scores()
    merges = [
        [piece[:cut], piece[cut:]]
        for piece in sorted(scores, key=lambda piece: -scores[piece][1])
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": pieces[UNK_ID],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": bool(tokenizer.proto().trainer_spec.byte_fallback),
        "ignore_merges": bool(tokenizer.symbols),  # a symbol is no result of merges
        "vocab": {piece: token for token, piece in enumerate(pieces)},
        "merges": merges,
    }


def _unigram(tokenizer: Tokenizer, pieces: Sequence[str]) -> dict[str, Any]:
    scores = tokenizer.scores()
    return {
        "type": "Unigram",
        "unk_id": UNK_ID,
        "byte_fallback": bool(tokenizer.proto().trainer_spec.byte_fallback),
        "vocab": [[piece, scores[piece][1] if piece in scores else 0.0] for piece in pieces],
    }
