"""Models as OPUS-MT publishes them, with random weights: two SentencePiece models and a vocabulary of both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from transformers import MarianConfig, MarianMTModel

from dstransformer.export.hf import export_hf
from dstransformer.model import open_bundle
from support.data.corpora import TEXT, train_model

#: What opus-mt-en-de and its like have in config.json, at a small size.
SHAPE: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "activation_function": "swish",
    "scale_embedding": True, "static_position_embeddings": True, "max_position_embeddings": 128, "dropout": 0.1,
    "normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False, "add_bias_logits": False,
}  # fmt: skip


def opus_folder(
    folder: Path,
    texts: tuple[Sequence[str], Sequence[str]] = (TEXT[::2], TEXT[1::2]),
    *,
    pieces: int = 60,
    tags: Sequence[str] = (),
    seed: int = 5,
    **changes: Any,
) -> Path:
    """The folder of a MarianMTModel with random weights; ``texts`` are those that its SentencePiece models learn."""
    folder.mkdir(parents=True)
    models = []
    for name, lines in zip(("source", "target"), texts, strict=True):
        ids = {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2, "byte_fallback": False}
        model = train_model(lines, vocab_size=pieces, model_type="unigram", hard_vocab_limit=False, **ids)
        (folder / f"{name}.spm").write_bytes(model)
        models.append(sentencepiece.SentencePieceProcessor(model_proto=model))
    own = [model.id_to_piece(number) for model in models for number in range(3, model.vocab_size())]
    names = ["</s>", "<unk>", *dict.fromkeys([*own, *tags]), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"source_lang": "eng", "target_lang": "deu", "tokenizer_class": "MarianTokenizer"})
    )
    pad = len(names) - 1
    numbers = {"vocab_size": len(names), "pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0}
    search = {"num_beams": 4, "max_length": 128, "forced_eos_token_id": 0, "bad_words_ids": [[pad]]}
    torch.manual_seed(seed)
    model = MarianMTModel(MarianConfig(**{**SHAPE, **numbers, **changes}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" not in name:
                spread = 0.3 if weight.dim() == 1 else weight.shape[-1] ** -0.5
                weight.copy_(torch.randn_like(weight) * spread + ("norm" in name and name.endswith("weight")))
        for side in (model.get_encoder(), model.get_decoder()):
            side.embed_tokens.weight[pad] = 0.0
        model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias) * 0.3)
    model.generation_config.update(**search)
    model.save_pretrained(folder)
    return folder


def as_marian(trained: Path, folder: Path) -> Path:
    """A bundle of ours in the files of a MarianTokenizer."""
    export_hf(trained, folder)
    (folder / "tokenizer.json").unlink()
    tokenizer = open_bundle(trained).tokenizer
    for name in ("source.spm", "target.spm"):
        tokenizer.save(folder / name)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    pieces += [f"<row {number}>" for number in range(len(pieces), rows)]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 1024}))
    return folder
