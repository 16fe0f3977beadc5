"""Folders of models as eole writes them, from bundles of ours; and eole itself in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dstransformer.data import Tokenizer
from dstransformer.model import Bundle, open_bundle
from dstransformer.model.transformer import sinusoidal_table

REPOSITORY = Path(__file__).parents[3]

#: What models of eole have.
EOLE: dict[str, Any] = {"norm": "pre", "norm_epsilon": 1e-5, "source_end": False, "output_bias": True}

SPECIAL = {"pad_token": "<blank>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}

#: Rows of its table of sinusoids.
POSITIONS = 5000

ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}


def eole_python() -> Path:
    """The Python that has eole; skips the test without one."""
    python = Path(os.environ.get("DST_EOLE", REPOSITORY / ".venv-eole" / "bin" / "python"))
    if not python.exists():
        how = ".venv-eole/bin/pip install -r benchmarks/peers/requirements/eole.txt"
        pytest.skip(f"no eole: python -m venv .venv-eole, then {how}")
    return python


def run_eole(*arguments: str | Path, cwd: Path) -> None:
    """Run the Python that has eole, without a GPU."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [str(eole_python()), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]


def ask_eole(model: Path, pairs: Sequence[tuple[list[str], list[str]]], lines: Sequence[str], folder: Path) -> Any:
    """eole's log-probabilities of pairs of pieces, and its greedy translations; see ``eole_program.py``."""
    (folder / "request.json").write_text(json.dumps({"pairs": pairs, "lines": lines}))
    program = Path(__file__).with_name("eole_program.py")
    run_eole(program, model, folder / "request.json", folder / "answer.json", cwd=folder)
    return json.loads((folder / "answer.json").read_text())


def eole_folder(bundle: Path, folder: Path, *, without: Sequence[str] = (), filler: int = 2) -> Path:
    """The folder of a model of eole with the weights of a bundle.

    Args:
        bundle: A bundle with :data:`EOLE`.
        folder: Where it goes.
        without: Pieces that its vocabulary lacks.
        filler: Rows that are no piece, as eole adds to reach a multiple.
    """
    folder.mkdir(parents=True)
    opened = open_bundle(bundle)
    sides = [_order(tokenizer, without, filler) for tokenizer in (opened.tokenizer.src, opened.tokenizer)]
    names = ("spm.model",) * 2 if opened.tokenizer.is_joint else ("source.model", "target.model")
    for name, tokenizer in zip(names, (opened.tokenizer.src, opened.tokenizer), strict=True):
        tokenizer.save(folder / name)
    vocabulary = {side: pieces for side, (pieces, _) in zip(("src", "tgt"), sides, strict=True)}
    (folder / "vocab.json").write_text(json.dumps({**vocabulary, "decoder_start_token": "<s>", "specials": SPECIAL}))
    content = {
        "transforms": ["sentencepiece", "filtertoolong"],
        "src_vocab": "vocab.txt",
        "tgt_vocab": "vocab.txt",
        "share_vocab": opened.tokenizer.is_joint,
        "training": {},
        "data": {},
        "model": _architecture(opened),
        "transforms_configs": {
            "sentencepiece": {
                f"{side}_subword_model": f"${{MODEL_PATH}}/{name}"
                for side, name in zip(("src", "tgt"), names, strict=True)
            }
        },
    }
    (folder / "config.json").write_text(json.dumps(content, indent=2))
    rows = [torch.tensor(ids) for _, ids in sides]
    save_file(eole_weights(opened, *rows), folder / "model.00.safetensors")
    return folder


def _order(tokenizer: Tokenizer, without: Sequence[str], filler: int) -> tuple[list[str], list[int]]:
    """The pieces of a vocabulary in eole's order, and the ids of ours; for filler that of the padding."""
    names = tokenizer.pieces(range(tokenizer.vocab_size))
    ids = [1, 0, 2, 3, *(number for number in reversed(range(4, len(names))) if names[number] not in without)]
    pieces = ["<unk>", "<blank>", "<s>", "</s>", *(names[number] for number in ids[4:])]
    return [*pieces, *(f"averyunlikelytoken{number}" for number in range(filler))], [*ids, *[0] * filler]


def _architecture(bundle: Bundle) -> dict[str, Any]:
    model = bundle.model
    positions = {"sinusoidal": "SinusoidalInterleaved", "timing": "SinusoidalConcat"}[model.positions]
    shared = {
        "hidden_size": model.d_model,
        "heads": model.num_heads,
        "head_dim": model.d_k,
        "transformer_ff": model.d_ff,
        "mlp_activation_fn": ACTIVATIONS[model.activation],
        "norm_eps": model.norm_epsilon,
        "add_qkvbias": model.attention_bias,
        "add_final_linear_bias": model.attention_bias,
        "add_ffnbias": True,
        "position_encoding_type": positions,
    }
    sizes = {"word_vec_size": model.d_model, "src_word_vec_size": model.d_model, "tgt_word_vec_size": model.d_model}
    return {
        **shared,
        "architecture": "transformer",
        "share_embeddings": model.tie_embeddings == "all",
        "share_decoder_embeddings": model.tie_embeddings != "none",
        "generator_bias": True,
        "embeddings": {**sizes, "position_encoding": True, "position_encoding_type": positions},
        "encoder": {"encoder_type": "transformer", "layers": model.encoder_depth},
        "decoder": {"decoder_type": "transformer", "layers": model.decoder_depth, "with_cross_attn": True},
    }


def eole_weights(bundle: Bundle, src_rows: Tensor, tgt_rows: Tensor) -> dict[str, Tensor]:
    """The weights of a bundle by the names of eole: the inverse of an import."""
    model, weights = bundle.model, {name: weight.float() for name, weight in bundle.load_weights().items()}
    order = torch.arange(model.d_model)
    table = sinusoidal_table(POSITIONS, model.d_model, torch.float32, torch.device("cpu"), model.positions)
    if model.positions == "timing":
        order = torch.cat((order[0::2], order[1::2]))
    tied = model.tie_embeddings
    found = {
        "src_emb.embeddings.weight": weights["embedding.weight" if tied == "all" else "src_embedding.weight"][src_rows]
    }
    if tied != "all":
        found["tgt_emb.embeddings.weight"] = weights["embedding.weight"][tgt_rows]
    if tied == "none":
        found["generator.weight"] = weights["softmax.weight"][tgt_rows]
    found = {name: weight[:, order] for name, weight in found.items()}
    found["generator.bias"] = weights["output_bias"][tgt_rows]
    if model.positions != "timing":
        found |= {f"{side}_emb.pe.pe": table[:, order][:, None].clone() for side in ("src", "tgt")}
    for side, depth in (("encoder", model.encoder_depth), ("decoder", model.decoder_depth)):
        for part in ("weight", "bias"):
            found[f"{side}.layer_norm.{part}"] = weights[f"{side}_norm.{part}"][order]
        for number in range(depth):
            found.update(_layer(bundle, weights, f"{side}.{number}", f"{side}.transformer_layers.{number}", order))
    return {name: weight.contiguous() for name, weight in found.items()}


def _layer(bundle: Bundle, weights: dict[str, Tensor], ours: str, theirs: str, order: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    width = bundle.model.num_heads * bundle.model.d_k
    parts = ("weight", "bias") if bundle.model.attention_bias else ("weight",)
    attentions = [("self_attention", "self_attn", "input_layernorm")]
    if ours.startswith("decoder"):
        attentions.append(("memory_attention", "context_attn", "precontext_layernorm"))
        found[f"{theirs}.layer_scalar"] = torch.ones(1)
    for own, other, norm in attentions:
        for part in parts:
            groups = ("qkv",) if own == "self_attention" else ("q", "kv")
            joined = torch.cat([weights[f"{ours}.{own}.{group}.{part}"] for group in groups])
            for name, projection in zip(("query", "keys", "values"), torch.split(joined, width), strict=True):
                found[f"{theirs}.{other}.linear_{name}.{part}"] = (
                    projection[:, order] if part == "weight" else projection
                )
            found[f"{theirs}.{other}.final_linear.{part}"] = weights[f"{ours}.{own}.out.{part}"][order]
        for part in ("weight", "bias"):
            found[f"{theirs}.{norm}.{part}"] = weights[f"{ours}.{own}_residual.norm.{part}"][order]
    found[f"{theirs}.mlp.gate_up_proj.weight"] = weights[f"{ours}.feed_forward.inner.weight"][:, order]
    found[f"{theirs}.mlp.gate_up_proj.bias"] = weights[f"{ours}.feed_forward.inner.bias"]
    for part in ("weight", "bias"):
        found[f"{theirs}.mlp.down_proj.{part}"] = weights[f"{ours}.feed_forward.outer.{part}"][order]
        found[f"{theirs}.post_attention_layernorm.{part}"] = weights[f"{ours}.feed_forward_residual.norm.{part}"][order]
    return found
