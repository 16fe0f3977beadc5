"""The record of a training: all that it takes to do it again, the figures that it reached, and what differs here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from dstransformer import __version__
from dstransformer.config import Config, complete_config
from dstransformer.config.deepspeed_json import MAX_WORLD_SIZE
from dstransformer.distributed.world import World
from dstransformer.errors import DataError
from dstransformer.io.files import replace_file, storage_errors
from dstransformer.io.json_text import read_record
from dstransformer.io.products import kind_of
from dstransformer.model import Bundle, open_bundle
from dstransformer.tracking.metrics_log import METRICS_NAME, read_records
from dstransformer.training.facts import describe_device
from dstransformer.training.plan import combine_hardware, share_threads
from dstransformer.training.provenance import VERSIONS, git_revision

FORMAT_VERSION = 1

#: Kinds of lines in ``metrics.jsonl`` with the figures of the final bundle, and how they begin here.
_FINAL = "final_"

#: Keys of the provenance that a record holds.
_KEPT = (
    "dstransformer", "git_revision", "versions", "preset", "corpus", "corpus_identity", "src_lang", "tgt_lang",
    "tokenizer_sha256", "src_tokenizer_sha256", "hardware", "world_size", "parent", "config",
)  # fmt: skip

#: What parts of a provenance are called in messages, if not by their keys.
_NAMES = {
    "git_revision": "revision",
    "world_size": "processes",
    "cpu_kernels": "CPU kernels",
    "gpu_kernels": "GPU kernels",
}

Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Record:
    """A finished training.

    Attributes:
        name: What it is called: the folder of its run.
        provenance: What it was made of, as its bundle records it.
        figures: The figures of the final bundle, by split and name: ``figures["test"]["bleu"]``.
        weights_sha256: The hash of the final bundle's weights.
        training_loss: Steps with the loss that the run logged at them; empty if they are not known.
    """

    name: str
    provenance: dict[str, Any]
    figures: Figures
    weights_sha256: str
    training_loss: list[tuple[int, float]]

    @property
    def config(self) -> Config:
        """The complete configuration.

        Raises:
            ConfigError: This version does not know a key.
        """
        return complete_config(self.provenance["config"], f"the record of {self.name}")

    @property
    def corpus(self) -> Mapping[str, Any]:
        """What identifies the corpus, see ``Manifest.identity``."""
        found: Mapping[str, Any] = self.provenance["corpus_identity"]
        return found

    @property
    def identity(self) -> tuple[object, ...]:
        """The configuration, the corpus and the parent: equal of trainings that are the same."""
        known, parent = self.provenance, self.provenance.get("parent")
        return (
            self.config.model_dump(exclude={"tracking"}),
            self.corpus["shards"],
            known.get("tokenizer_sha256"),
            known.get("src_tokenizer_sha256"),
            None if parent is None else parent["weights_sha256"],
        )

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return int(self.provenance["world_size"])

    def without_places(self) -> Record:
        """A copy for others: without paths of this machine and the address of its tracking server.

        The path of a DeepSpeed JSON stays, as it is part of the configuration.
        """
        parent = self.provenance.get("parent")
        config = self.provenance["config"]
        tracking = {**config.get("tracking", {}), "uri": None}
        kept = {name: value for name, value in self.provenance.items() if name not in ("corpus", "preset")}
        kept["config"] = {**config, "tracking": tracking}
        if isinstance(parent, dict):
            kept["parent"] = {name: value for name, value in parent.items() if name != "path"}
        return replace(self, provenance=kept)

    def write(self, path: Path) -> None:
        """Write the record as JSON."""
        content = {"format_version": FORMAT_VERSION, **asdict(self)}
        with storage_errors(path):
            replace_file(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read(path: Path) -> Record:
    """The record of a run or of a bundle, or one from :meth:`Record.write`.

    A bundle outside the folder of its run knows only the score by which it was chosen.

    Raises:
        DataError: There is no such record, it is damaged or of a newer format, or the training is not finished.
    """
    if path.is_file():
        return read_record(path, _build, newest=FORMAT_VERSION, advice="copy it again")
    if kind_of(path) == "run" and not (path / "bundle").is_dir():
        raise DataError(f"{path} has no final bundle: its training has not finished; run it to the end")
    return describe(open_bundle(path))


def describe(bundle: Bundle) -> Record:
    """The record of the training of a final bundle.

    Raises:
        DataError: It is not the final bundle of a finished training.
    """
    place, provenance = bundle.path, bundle.provenance
    if "imported" in provenance:
        raise DataError(f"{place} was imported: how it was trained is not recorded, so it cannot be done again")
    bundle.training_config()
    final = provenance.get("final")
    if not isinstance(final, dict):
        raise DataError(
            f"{place} is not the final bundle of a training: name RUN or RUN/bundle of a run that has finished"
        )
    run, has_run = place.parent, kind_of(place.parent) == "run"
    figures, losses = _read_metrics(run) if has_run else ({}, [])
    if not figures:
        figures = {"validation": {str(final["metric"]): float(final["scores"][final["chosen"]])}}
    return Record(
        name=(run if has_run else place).absolute().name,
        provenance={key: provenance[key] for key in _KEPT if key in provenance},
        figures=figures,
        weights_sha256=bundle.weights_sha256,
        training_loss=losses,
    )


def _read_metrics(run: Path) -> tuple[Figures, list[tuple[int, float]]]:
    """The figures of the final bundle and the losses that a run has logged."""
    figures: Figures = {}
    losses: list[tuple[int, float]] = []
    for line in read_records(run / METRICS_NAME, skip_damaged=True):
        kind = line["kind"]
        if kind.startswith(_FINAL):
            values = {name: value for name, value in line.items() if name not in ("kind", "step", "time")}
            numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
            figures[kind.removeprefix(_FINAL)] = numbers
        elif kind == "train" and isinstance(line.get("loss"), float):
            losses.append((line["step"], line["loss"]))
    return figures, losses


def describe_environment(world: World, processes: int, threads: str | None) -> dict[str, Any]:
    """The part of a provenance that an environment determines.

    Args:
        world: This process alone.
        processes: The number of processes that train.
        threads: The number of threads of each on a CPU; None for that of this process.
    """
    facts = [describe_device(world.device)]
    hardware = combine_hardware(facts, share_threads(facts))
    if threads is not None and "threads" in hardware:
        hardware["threads"] = threads
    return {
        "dstransformer": __version__,
        "git_revision": git_revision(),
        "versions": {name: version(name) for name in VERSIONS},
        "hardware": hardware,
        "world_size": processes,
    }


def differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """What differs between two provenances that can change the last bits of a result, by name: recorded, and here."""
    before, after = _flatten(recorded), _flatten(here)
    names = dict.fromkeys([*before, *after])
    return {
        name: (before.get(name, "not recorded"), after.get(name, "none"))
        for name in names
        if before.get(name) != after.get(name)
    }


def _flatten(provenance: Mapping[str, Any]) -> dict[str, str]:
    hardware = provenance.get("hardware") or {}
    whole = {
        "dstransformer": provenance.get("dstransformer"),
        "git_revision": provenance.get("git_revision"),
        **(provenance.get("versions") or {}),
        **hardware,
        "world_size": provenance.get("world_size"),
    }
    return {_NAMES.get(name, name): str(value) for name, value in whole.items() if value is not None}


def _build(content: dict[str, Any]) -> Record:
    stored = _Stored.model_validate(content)
    return Record(stored.name, content["provenance"], stored.figures, stored.weights_sha256, stored.training_loss)


class _Section(BaseModel):
    """Further keys are left as they are."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Identity(_Section):
    command: Annotated[str, Field(pattern=r"^dst-prep build ")]
    sources: list[dict[str, Any]]
    recipes: list[dict[str, Any]]
    versions: dict[str, str]
    shards: dict[str, list[str]]


class _Parent(_Section):
    path: str = ""
    weights_sha256: str


class _Provenance(_Section):
    dstransformer: str | None = None
    git_revision: str | None = None
    versions: dict[str, str] = {}
    corpus: str | None = None
    corpus_identity: _Identity
    tokenizer_sha256: str | None = None
    src_tokenizer_sha256: str | None = None
    hardware: dict[str, str] = {}
    world_size: Annotated[int, Field(ge=1, le=MAX_WORLD_SIZE)]
    parent: _Parent | None = None
    config: dict[str, Any]


class _Stored(_Section):
    name: str
    provenance: _Provenance
    figures: Annotated[dict[str, Annotated[dict[str, FiniteFloat], Field(min_length=1)]], Field(min_length=1)]
    weights_sha256: str
    training_loss: list[Annotated[tuple[int, FiniteFloat], Field(strict=False)]]
