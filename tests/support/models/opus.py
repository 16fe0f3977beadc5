"""Models as OPUS-MT publishes them, with random weights: two SentencePiece models and a vocabulary of both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from transformers import MarianConfig, MarianMTModel

from dstransformer.exchange.hf_export import export_hf
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
    separate: bool = False,
    seed: int = 5,
    **changes: Any,
) -> Path:
    """The folder of a MarianMTModel with random weights; ``texts`` are those that its SentencePiece models learn.

    If each side has its own vocabulary, padding has another number in each.
    """
    folder.mkdir(parents=True)
    models = []
    for name, lines in zip(("source", "target"), texts, strict=True):
        ids = {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2, "byte_fallback": False}
        model = train_model(lines, vocab_size=pieces, model_type="unigram", hard_vocab_limit=False, **ids)
        (folder / f"{name}.spm").write_bytes(model)
        models.append(sentencepiece.SentencePieceProcessor(model_proto=model))
    source, target = ([model.id_to_piece(number) for number in range(3, model.vocab_size())] for model in models)
    names = ["</s>", "<unk>", *dict.fromkeys([*source, *([] if separate else target), *tags]), "<pad>"]
    of_target = ["</s>", "<unk>", "<pad>", *target] if separate else names
    for name, listed in (("vocab", names), *([("target_vocab", of_target)] if separate else [])):
        (folder / f"{name}.json").write_text(json.dumps({piece: number for number, piece in enumerate(listed)}))
    stated = {"source_lang": "eng", "target_lang": "deu", "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**stated, "separate_vocabs": separate}))
    pad = of_target.index("<pad>")
    numbers = {"vocab_size": len(names), "pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0}
    if separate:
        changes = {"decoder_vocab_size": len(of_target), "share_encoder_decoder_embeddings": False, **changes}
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


def as_marian(trained: Path, folder: Path, *, separate: bool = False) -> Path:
    """A bundle of ours with a joint vocabulary in the files of a MarianTokenizer.

    If they are separate, the target's vocabulary has the pieces in another order.
    """
    export_hf(trained, folder)
    (folder / "tokenizer.json").unlink()
    tokenizer = open_bundle(trained).tokenizer
    for name in ("source.spm", "target.spm"):
        tokenizer.save(folder / name)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    pieces += [f"<row {number}>" for number in range(len(pieces), rows)]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    stated = {"model_max_length": 1024, "separate_vocabs": separate}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    if separate:
        _separate(folder, pieces)
    return folder


def _separate(folder: Path, pieces: Sequence[str]) -> None:
    """Give the target a vocabulary of its own: after the special pieces, the others in reverse."""
    order = [*range(4), *reversed(range(4, len(pieces)))]
    of_target = {pieces[number]: row for row, number in enumerate(order)}
    (folder / "target_vocab.json").write_text(json.dumps(of_target))
    weights = load_file(folder / "model.safetensors")
    shared = weights.pop("model.shared.weight")
    weights |= {"model.encoder.embed_tokens.weight": shared, "model.decoder.embed_tokens.weight": shared[order]}
    weights["final_logits_bias"] = weights["final_logits_bias"][:, order]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    settings = json.loads((folder / "generation_config.json").read_text())
    never = [order.index(number) for number in settings["suppress_tokens"]]
    for name, changes in (
        ("config.json", {"share_encoder_decoder_embeddings": False}),
        ("generation_config.json", {"suppress_tokens": never}),
    ):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, **changes}))
