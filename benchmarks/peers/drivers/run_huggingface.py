"""Hugging Face: ``MarianMTModel`` under ``Seq2SeqTrainer``. Runs in the environment of that peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import harness
import torch
from transformers import (
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

PAD, BOS, EOS, IGNORED = 0, 2, 3, -100


class Sentences(torch.utils.data.Dataset[dict[str, list[int]]]):
    """The training text as ids."""

    def __init__(self, request: harness.Request) -> None:
        ids = {piece: number for number, piece in enumerate(request.vocabulary())}
        self._src, self._tgt = (
            [[ids[piece] for piece in line] + [EOS] for line in request.lines(f"train.{side}")]
            for side in ("src", "tgt")
        )
        self.tgt_tokens = sum(map(len, self._tgt))

    def __len__(self) -> int:
        return len(self._src)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self._src[index], "labels": self._tgt[index]}


def collate(pairs: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """What ``DataCollatorForSeq2Seq`` makes, which would want a tokenizer for it."""
    src, labels = zip(*((pair["input_ids"], pair["labels"]) for pair in pairs), strict=True)
    return {
        "input_ids": pad(src, PAD),
        "attention_mask": pad([[1] * len(ids) for ids in src], 0),
        "labels": pad(labels, IGNORED),
        "decoder_input_ids": pad([[BOS, *ids[:-1]] for ids in labels], PAD),
    }


def pad(rows: Sequence[list[int]], filler: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])


class MeteredTrainer(Seq2SeqTrainer):
    """Counts the tokens of each batch on its way into the step."""

    meter: harness.Meter

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *arguments: Any) -> torch.Tensor:
        self.meter.count(inputs["attention_mask"].sum().item(), (inputs["labels"] != IGNORED).sum().item())
        return super().training_step(model, inputs, *arguments)


class Clock(TrainerCallback):
    """Tells the meter of every optimizer step."""

    def __init__(self, meter: harness.Meter, model: MarianMTModel) -> None:
        self._meter = meter
        self._model = model

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._meter.end_update(self._model.save_pretrained)


def train(request: harness.Request, meter: harness.Meter) -> None:
    sentences = Sentences(request)
    model = build_model(request, len(request.vocabulary()))
    arguments = Seq2SeqTrainingArguments(
        output_dir=request.work,
        # Its batches are counted in sentences: as many as make the wanted number of target tokens on average.
        per_device_train_batch_size=round(request.tokens * len(sentences) / sentences.tgt_tokens),
        train_sampling_strategy="group_by_length",
        label_smoothing_factor=request.label_smoothing,
        bf16=request.precision == "bf16",
        optim="adamw_torch_fused",
        adam_beta2=0.98,
        learning_rate=request.peak_rate,
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=request.warmup,
        max_grad_norm=0.0,
        max_steps=1_000_000,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
    )
    trainer = MeteredTrainer(
        model=model,
        args=arguments,
        train_dataset=sentences,
        data_collator=collate,
        callbacks=[Clock(meter, model)],
    )
    trainer.meter = meter
    trainer.train()


def build_model(request: harness.Request, vocab_size: int) -> MarianMTModel:
    config = MarianConfig(
        vocab_size=vocab_size,
        d_model=request.d_model,
        encoder_layers=request.layers,
        decoder_layers=request.layers,
        encoder_attention_heads=request.heads,
        decoder_attention_heads=request.heads,
        encoder_ffn_dim=request.d_ff,
        decoder_ffn_dim=request.d_ff,
        dropout=request.dropout,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=EOS,
        max_position_embeddings=256,
    )
    # PyTorch's fused attention is slow on a CPU in bf16: plain products train a quarter faster.
    config._attn_implementation = "eager" if request.precision == "bf16" else "sdpa"
    return MarianMTModel(config)


if __name__ == "__main__":
    harness.main(train)
