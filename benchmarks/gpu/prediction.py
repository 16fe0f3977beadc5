"""Predictions for a device that is not there. They are no measurements, and say so."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gpu.cases import Case
from benchmarks.gpu.changes import CHANGES, FLASH_BLOCK, FLASH_PASSES, attention_work, replay_graphs
from benchmarks.gpu.counts import LAYOUTS, VOCABULARY, Counted, Counts, load_counts
from benchmarks.gpu.roofline import KERNEL_SECONDS, Work, predict
from benchmarks.gpu.search_prediction import predict_search
from benchmarks.gpu.sheets import LAUNCH_SECONDS, SHEETS, TRITON_SECONDS, WAIT_SECONDS, Sheet, UpdateTime
from benchmarks.gpu.text import build_updates
from benchmarks.lib.tables import format_table
from dstransformer.config import Config, load_config
from dstransformer.data.plan import build_budget
from dstransformer.model import parameter_count, training_flops

#: Source tokens of a batch of sentences to translate: as shipped, and more.
_BATCH_TOKENS = (4096, 16_384, 32_768, 65_536)

_SEARCH_COLUMNS = (
    "model | source tokens a batch: | FLOPs a step: | GB moved: | launches: | waits: | products, ms: | memory, ms: | "
    "host, ms: | waits, ms: | step, ms: | target tokens/s:"
)

_COLUMNS = (
    "model | what | FLOPs: | GB moved: | launches: | waits: | products, ms: | memory, ms: | host, ms: | waits, ms: | "
    "links, ms: | update, ms: | target tokens/s, at most: | at least: | of the peak:"
)


@dataclass(frozen=True)
class Row:
    """A predicted layout of training; ``layout`` is None if it was not counted, but changed.

    ``time`` is that of the best assumptions, ``cautious`` that of the worst.
    """

    model: str
    what: str
    layout: Counted | None
    work: Work
    time: UpdateTime
    cautious: UpdateTime
    tgt_tokens: float
    model_flops: float
    gpus: int

    @property
    def speed(self) -> float:
        """Target tokens per second of all GPUs, at most."""
        return self.tgt_tokens / self.time.total

    @property
    def least(self) -> float:
        """Likewise, at least."""
        return self.tgt_tokens / self.cautious.total

    def format(self, sheet: Sheet) -> str:
        """The row of the table."""
        time = self.time
        share = self.model_flops / self.gpus / time.total / sheet.products
        seconds = (time.products, time.memory, time.host, time.waits, time.links, time.total)
        terms = " | ".join(f"{1000 * term:.1f}" for term in seconds)
        return (
            f"{self.model} | {self.what} | {self.work.flops:.2e} | {self.work.moved / 1e9:.1f} | "
            f"{self.work.host_launches:,} | {self.work.waits} | {terms} | {self.speed:,.0f} | {self.least:,.0f} | "
            f"{share:.0%}"
        )


def describe(device: str, gpus: int) -> str:
    """The predictions for training and decoding on a device, with their assumptions, in Markdown."""
    sheet = SHEETS[device]
    rows = [row for model in ("base", "big") for row in predict_training(model, sheet, gpus)]
    parts = [
        f"PREDICTIONS for {gpus} x {sheet.name}: nothing here has been measured on a GPU.",
        describe_assumptions(sheet),
        "Training, 25,000 + 25,000 tokens an update; FLOPs, bytes and launches are those of one GPU:",
        format_table(_COLUMNS, [row.format(sheet) for row in rows]),
    ]
    if gpus == 1:
        searches = [(model, tokens) for model in ("base", "big") for tokens in _BATCH_TOKENS]
        parts += [
            "Beam search, beam 4, a step in the middle of a sentence; a GPU takes up to 8 x 4,096 tokens a batch:",
            format_table(_SEARCH_COLUMNS, [_format_search(*search, sheet) for search in searches]),
        ]
    return "\n\n".join(parts)


def _format_search(model: str, batch_tokens: int, sheet: Sheet) -> str:
    search = predict_search(model, sheet, batch_tokens)
    work, time = search.work, search.time
    terms = (time.products, time.memory, time.host, time.waits, time.total)
    counted = f"{work.flops:.2e} | {work.moved / 1e9:.2f} | {work.host_launches} | {work.waits}"
    milliseconds = " | ".join(f"{1000 * term:.2f}" for term in terms)
    return f"{model} | {batch_tokens:,} | {counted} | {milliseconds} | {search.tokens_per_second:,.0f}"


def describe_assumptions(sheet: Sheet) -> str:
    """What a prediction assumes."""
    worst = sheet.cautious()
    return (
        f"{sheet.name}: products at {sheet.product_share:.0%} of {sheet.products / 1e12:,.0f} TFLOP/s (at worst "
        f"{worst.product_share:.0%}), other operators at {sheet.bandwidth_share:.0%} of "
        f"{sheet.bandwidth / 1e12:.2f} TB/s ({worst.bandwidth_share:.0%}) and {KERNEL_SECONDS * 1e6:.0f} µs at least, "
        f"no time between kernels ({worst.gap * 1e6:.0f} µs), links at {sheet.link_share:.0%} of "
        f"{sheet.link / 1e9:.0f} GB/s. Flash attention computes blocks of {FLASH_BLOCK} x {FLASH_BLOCK} of each "
        f"sentence, and passes {FLASH_PASSES} times over fp32 gradients of as many rows. The host takes "
        f"{LAUNCH_SECONDS * 1e6:.0f} µs per operator, {TRITON_SECONDS * 1e6:.0f} µs per Triton kernel; a wait "
        f"leaves the device idle for {WAIT_SECONDS * 1e6:.0f} µs. An update takes the longer of device and host, then "
        "waits and links. Operators, bytes and waits are counted on a faked device; bf16, eager."
    )


def predict_training(model: str, sheet: Sheet, gpus: int) -> list[Row]:
    """Predict training as shipped, and with each change on top of those before."""
    found = load_counts()
    config = load_config(model)
    layouts = [("as shipped", Counted(model, 1, gpus, gpus))]
    if gpus == 1:
        layouts.insert(0, ("8 micro-batches", Counted(model, 1, 1, 8)))
    layouts.append(("ZeRO 0", layouts[-1][1]._replace(stage=0)))
    flops, tgt_tokens = _model_work(config)
    rows = []

    def add(what: str, work: Work, layout: Counted | None = None) -> None:
        times = predict(work, sheet), predict(work, sheet.cautious())
        rows.append(Row(model, what, layout, work, *times, tgt_tokens, flops, gpus))

    for what, layout in layouts:
        add(what, _work(config, layout, found[layout]), layout)
    work = rows[-1].work
    for name, change in CHANGES:
        if change is replay_graphs and gpus == 1:
            continue  # with one GPU's share of the tokens the device takes longer than the host
        work = change(work, config, VOCABULARY)
        add(f"+ {name}", work)
    return rows


def predict_case(case: Case, sheet: Sheet) -> tuple[float, float] | None:
    """Predict the target tokens per second of a case of the benchmark, at least and at most.

    Returns:
        None if its like was not counted.
    """
    if not _is_counted(case):
        return None
    worst_and_best = sheet.cautious(), sheet
    if case.act == "decode":
        tokens = case.work.batch_tokens
        least, most = (predict_search(case.model, of, tokens).tokens_per_second for of in worst_and_best)
        return least, most
    layout = _layout(case)
    counts = load_counts()[layout]
    work = _work(case.load_config(), layout, counts)
    least, most = (counts.tgt_tokens / predict(work, of).total for of in worst_and_best)
    return least, most


def predict_peak(case: Case) -> float | None:
    """The most bytes that tensors take in a case of the benchmark; None if its like was not counted."""
    return load_counts()[_layout(case)].peak_bytes if case.act == "train" and _is_counted(case) else None


def _is_counted(case: Case) -> bool:
    plain = case.precision == "bf16" and case.backend == "varlen" and not case.compiled
    counted = case.act == "decode" or (case.loop == "engine" and _layout(case) in LAYOUTS)
    return plain and counted and case.work.vocabulary == VOCABULARY


def _layout(case: Case) -> Counted:
    return Counted(case.model, case.stage, 1, case.micro_batches)


def describe_beside(predicted: tuple[float, float] | None, peak_bytes: float | None = None) -> str:
    """Predictions, to print after the measured figures; empty if there is none."""
    speed = "" if predicted is None else "; predicted {:,.0f} to {:,.0f} target tokens/s".format(*predicted)
    return speed if peak_bytes is None else f"{speed}; counted {peak_bytes / 2**30:.1f} GiB"


def _work(config: Config, layout: Counted, counts: Counts) -> Work:
    parameters, gpus = parameter_count(config.model, VOCABULARY), layout.gpus
    traffic = _link_bytes(layout.stage, gpus, max(1, layout.micro_batches // gpus), parameters)
    flops, rows = attention_work(config, FLASH_BLOCK)
    moved = 4.0 * FLASH_PASSES * rows * config.model.num_heads * config.model.d_k
    return Work(counts.operators, counts.waits, flops / gpus, moved / gpus, traffic)


def _link_bytes(stage: int, world_size: int, steps: int, parameters: int) -> float:
    """Bytes that a GPU sends to the others of its node in an update.

    Stages 0 and 1 reduce all gradients to all GPUs, which counts twice; stage 2 reduces those of each micro-batch to
    the GPU that needs them. Stages 1 and 2 gather the weights too.
    """
    times = (2, 3, steps + 1)[stage]
    return times * (world_size - 1) / world_size * 4 * parameters


def _model_work(config: Config) -> tuple[int, int]:
    """Operations of the model, and target tokens, of a whole update."""
    (update,) = build_updates(build_budget(config.with_micro_batches(1).batch), 1, VOCABULARY)
    rows = config.model.embedding_rows(VOCABULARY)
    return training_flops(config.model, rows, update.sums), update.tgt_tokens
