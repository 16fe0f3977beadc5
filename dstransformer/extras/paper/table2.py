"""Table 2 of the paper: BLEU on newstest2014 and training cost in FLOPs, and the same of runs from here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dstransformer.errors import UserError, shown
from dstransformer.evaluation import Score
from dstransformer.io.json_text import read_json
from dstransformer.io.products import check_kind
from dstransformer.tracking.metrics_log import METRICS_NAME, read_records

#: The language pairs of the table, and their names there.
PAIRS = {"en-de": "EN-DE", "en-fr": "EN-FR"}

#: Sustained single-precision TFLOPS by device (section 6.1, footnote 5).
SUSTAINED_TFLOPS = {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}


class PaperRow(NamedTuple):
    """A row of the paper's Table 2: BLEU and training cost in FLOPs by language pair; None where it has none."""

    model: str
    bleu_de: float | None
    bleu_fr: float | None
    flops_de: float | None
    flops_fr: float | None


PAPER = (
    PaperRow("ByteNet", 23.75, None, None, None),
    PaperRow("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    PaperRow("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    PaperRow("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    PaperRow("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    PaperRow("Deep-Att + PosUnk Ensemble", None, 40.4, None, 8.0e20),
    PaperRow("GNMT + RL Ensemble", 26.30, 41.16, 1.8e20, 1.1e21),
    PaperRow("ConvS2S Ensemble", 26.36, 41.29, 7.7e19, 1.2e21),
    # The paper gives each Transformer one cost, across both columns.
    PaperRow("Transformer (base model)", 27.3, 38.1, 3.3e18, 3.3e18),
    PaperRow("Transformer (big)", 28.4, 41.8, 2.3e19, 2.3e19),
)


@dataclass(frozen=True)
class RunResult:
    """The values of a run for the table. None means that its folder does not hold the value.

    Attributes:
        run: The run folder, as given.
        languages: Its language pair, ``en-de``.
        device: The name of its devices.
        sources: Names of the sources of its corpus.
        bleu: The BLEU score for the table: computed as the paper's where there is one.
        sacrebleu: BLEU by sacrebleu's default.
        flops: Operations of its updates, counted.
        device_hours: Hours of training times devices.
        sustained_tflops: Sustained TFLOPS of a device.
        notes: Notes for the reader, one sentence each.
        warnings: Why its figures cannot be compared with the paper's.
    """

    run: str
    languages: str | None = None
    device: str | None = None
    sources: tuple[str, ...] | None = None
    bleu: Score | None = None
    sacrebleu: Score | None = None
    flops: float | None = None
    device_hours: float | None = None
    sustained_tflops: float | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def paper_flops(self) -> float | None:
        """The cost by the paper's method: time × devices × sustained FLOP/s of a device (section 6.1)."""
        if self.device_hours is None or self.sustained_tflops is None:
            return None
        return self.device_hours * 3600 * self.sustained_tflops * 1e12


def sustained_tflops_of(device: str) -> float | None:
    """The paper's value for a device by its name, such as ``Tesla P100-SXM2-16GB``; None for other devices."""
    return next((value for name, value in SUSTAINED_TFLOPS.items() if re.search(rf"\b{name}[a-z]?\b", device)), None)


def read_run(folder: Path, sustained_tflops: float | None = None) -> RunResult:
    """Read the scores and the cost of a run. Sustained TFLOPS of its devices that are not given are the paper's.

    Raises:
        UserError: The folder is not a run folder, or cannot be read.
    """
    check_kind(folder, "run", "name the folder that was given to dst train with --run")
    provenance = _read_provenance(folder)
    try:
        records = (
            list(read_records(folder / METRICS_NAME, skip_damaged=False)) if (folder / METRICS_NAME).exists() else []
        )
    except OSError as error:
        raise UserError(f"{folder / METRICS_NAME} cannot be read: {error.strerror}") from None
    last = {str(record.get("kind")): record for record in records}
    hardware, sources = provenance.get("hardware"), provenance.get("sources")
    device = _text(hardware.get("device")) if isinstance(hardware, dict) else None
    languages = f"{provenance['src_lang']}-{provenance.get('tgt_lang')}" if "src_lang" in provenance else None
    notes: list[str] = []
    bleu, sacrebleu = _read_bleu(last, languages, notes)
    cost = last.get("cost", {})
    for name in ("flops", "device_hours"):
        if not isinstance(cost.get(name), int | float | None):
            value = shown(cost[name])
            raise UserError(
                f"{folder / METRICS_NAME} is damaged ({name} is {value}, not a number): restore it from a copy"
            )
    sustained = sustained_tflops or (None if device is None else sustained_tflops_of(device))
    result = RunResult(
        run=str(folder),
        languages=languages,
        device=device,
        sources=tuple(map(str, sources)) if isinstance(sources, list) else None,
        bleu=bleu,
        sacrebleu=sacrebleu,
        flops=cost.get("flops"),
        device_hours=cost.get("device_hours"),
        sustained_tflops=sustained,
        notes=notes,
    )
    _add_notes(result, _text(provenance.get("corpus")))
    return result


def _text(value: object) -> str | None:
    """The value if it is a string, else None."""
    return value if isinstance(value, str) else None


def _read_provenance(run: Path) -> dict[str, Any]:
    """The provenance of the run's bundle, or of its newest checkpoint; empty if it has neither."""
    checkpoints = sorted((run / "checkpoints").glob("step-*/bundle/provenance.json"), reverse=True)
    for path in (run / "bundle" / "provenance.json", *checkpoints):
        try:
            content = read_json(path, nan=True)
        except (OSError, ValueError):
            continue
        if isinstance(content, dict):
            return content
    return {}


def _read_bleu(
    last: Mapping[str, Mapping[str, Any]], languages: str | None, notes: list[str]
) -> tuple[Score | None, Score | None]:
    """The BLEU for the table and sacrebleu's, from the last records of each kind; adds notes about what is missing."""
    record, validation = last.get("final_test"), last.get("final_validation")
    if record is None and validation is None:
        notes.append("it has no final evaluation: the run has not finished")
        return None, None
    if record is None:
        bleu = _find_score(validation or {}, "bleu")
        notes.append(f"its corpus has no test split, so it has no test score; on validation {bleu}")
        return None, None
    sacrebleu, paper = _find_score(record, "bleu"), _find_score(record, "bleu_compound_split")
    if paper is None and languages == "en-de":
        notes.append("its BLEU is sacrebleu's, which is lower than the paper's; `dst evaluate` computes both")
    scored, trained = record.get("step"), last.get("cost", record).get("step")
    if scored != trained:
        notes.append(f"its BLEU is of update {scored}, its cost of update {trained}")
    return paper or sacrebleu, sacrebleu


def _find_score(record: Mapping[str, Any], metric: str) -> Score | None:
    """A score of a record by its name, which may end in ``_first_N``."""
    for name, value in record.items():
        if re.fullmatch(rf"{metric}(_first_\d+)?", name) and isinstance(value, int | float):
            return Score(name, float(value), str(record.get(f"{name}_signature", "")))
    return None


def _add_notes(result: RunResult, corpus: str | None) -> None:
    """Add notes about the cost and the test set, and a warning if the corpus is not the paper's."""
    if result.flops is None:
        result.notes.append("it has no cost: it has not computed anything")
    elif result.sustained_tflops is None:
        device = "its device" if result.device is None else shown(result.device, quote=False)
        result.notes.append(
            f"no cost by the paper's method: the paper has no sustained TFLOPS for {device}; give --sustained-tflops"
        )
    elif result.device_hours is not None:
        result.notes.append(
            f"cost by the paper's method: {result.device_hours:.3g} device hours × {result.sustained_tflops:g} TFLOPS"
        )
    is_wmt14 = result.sources == ("wmt14",)
    result.notes.extend(str(score) for score in dict.fromkeys((result.bleu, result.sacrebleu)) if score is not None)
    if result.bleu is not None:
        where = "newstest2014" if is_wmt14 else "the test split"
        result.notes.append(f"test set: {where} of {corpus or 'its corpus'}")
    if result.sources is None:
        result.warnings.append(f"{result.run}: no record says whether its corpus is WMT14, the paper's")
    elif not is_wmt14:
        result.warnings.append(
            f"{result.run}: its corpus (source {', '.join(result.sources)}) is not WMT14 as dst-prep builds it, so its "
            "BLEU and its cost do not compare with the paper's"
        )
    if result.languages is not None and result.languages not in PAIRS:
        result.warnings.append(f"{result.run}: the table has no column for {result.languages}")


def to_json(results: Sequence[RunResult]) -> dict[str, Any]:
    """The table as plain data for ``--json``."""
    return {
        "paper": [
            {
                "model": row.model,
                "bleu": {"en-de": row.bleu_de, "en-fr": row.bleu_fr},
                "flops": {"en-de": row.flops_de, "en-fr": row.flops_fr},
            }
            for row in PAPER
        ],
        "runs": [
            {
                "run": result.run,
                "languages": result.languages,
                "sources": None if result.sources is None else list(result.sources),
                "device": result.device,
                "bleu": result.bleu and asdict(result.bleu),
                "sacrebleu": result.sacrebleu and asdict(result.sacrebleu),
                "device_hours": result.device_hours,
                "sustained_tflops": result.sustained_tflops,
                "flops_by_the_papers_method": result.paper_flops,
                "flops_counted": result.flops,
                "notes": result.notes,
            }
            for result in results
        ],
        "warnings": [warning for result in results for warning in result.warnings],
    }


def format_table(results: Sequence[RunResult]) -> str:
    """The table in Markdown, then notes about each run, then warnings."""
    header = ["", *(f"BLEU {name}" for name in PAIRS.values()), *(f"FLOPs {name}" for name in PAIRS.values())]
    rows = [[*header, "FLOPs counted"]]
    for row in PAPER:
        costs = [_format_flops(flops) for flops in (row.flops_de, row.flops_fr)]
        bleus = ["–" if bleu is None else f"{bleu:g}" for bleu in (row.bleu_de, row.bleu_fr)]
        rows.append([row.model, *bleus, *costs, "–"])
    for result in results:
        bleu = "–" if result.bleu is None else f"{result.bleu.value:.2f}"
        unknown = result.device_hours is not None and result.sustained_tflops is None
        cost = "no TFLOPS known" if unknown else _format_flops(result.paper_flops)
        bleus, costs = ([value if pair == result.languages else "–" for pair in PAIRS] for value in (bleu, cost))
        rows.append([result.run, *bleus, *costs, _format_flops(result.flops)])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|---|--:|--:|--:|--:|--:|")
    lines += [
        "",
        "FLOPs: training time × devices × sustained FLOP/s of a device, as in the paper. FLOPs counted: two for each "
        "multiply-add of forward and backward pass.",
    ]
    for result in results:
        lines += ["", f"{result.run}:", *(f"- {note}" for note in result.notes)]
    warnings = [f"warning: {warning}" for result in results for warning in result.warnings]
    return "\n".join([*lines, *([""] if warnings else []), *warnings])


def _format_flops(flops: float | None) -> str:
    """``3.3e18``, as short as the paper's figures."""
    if flops is None:
        return "–"
    mantissa, exponent = f"{flops:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"
