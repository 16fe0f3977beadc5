"""The configuration of the workflow, checked before the first step runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from dstransformer.errors import ConfigError, shown
from dstransformer.io.languages import code_problem

Quantization = Literal[
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"
]


#: In place of a bundle: the teacher of the workflow.
TEACHER = Path("teacher")


def _absolute(path: object, info: ValidationInfo) -> object:
    """A path starts at the folder of the configuration, which is the context."""
    return info.context / path if isinstance(path, str) and info.context is not None else path


def _check_file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    return path


def _check_folder(path: Path) -> Path:
    if path != TEACHER and not path.is_dir():
        raise ValueError(f"{path} is not a folder")
    return path


def _find_aligner(path: object, info: ValidationInfo) -> object:
    return TEACHER if path == str(TEACHER) else _absolute(path, info)


def _find_preset(name: object, info: ValidationInfo) -> object:
    """The name of a preset, or the path of its file."""
    is_file = isinstance(name, str) and name.endswith((".yaml", ".yml"))
    return str(_absolute(name, info)) if is_file else name


File = Annotated[Path, BeforeValidator(_absolute), AfterValidator(_check_file)]
Folder = Annotated[Path, BeforeValidator(_absolute), AfterValidator(_check_folder)]
Preset = Annotated[str, BeforeValidator(_find_preset)]

#: What stands for the files of an aligner in its command.
ALIGNER_FILES = ("{src}", "{tgt}", "{out}")


class Section(BaseModel):
    """A section: values without a default come from ``config.yaml``."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Teacher(Section):
    """Trained bundles, or what a teacher is trained from."""

    bundles: list[Folder]
    preset: Preset | None
    corpus: Folder | None
    set: list[str]

    @model_validator(mode="after")
    def _one_kind(self) -> Teacher:
        if self.bundles and (self.preset or self.corpus or self.set):
            raise ValueError("name bundles, or preset and corpus of a teacher to train, not both")
        if not self.bundles and not (self.preset and self.corpus):
            raise ValueError("name bundles, or preset and corpus of a teacher to train")
        return self


class Text(Section):
    """What the teacher translates."""

    src: File | None
    tgt: File | None
    mono: File | None

    @model_validator(mode="after")
    def _pairs(self) -> Text:
        if (self.src is None) != (self.tgt is None):
            raise ValueError("src and tgt go together: give both or none")
        if self.src is None and self.mono is None:
            raise ValueError("there is nothing to translate: give src and tgt, or mono, or all of them")
        return self


class Translate(Section):
    """How the teacher translates."""

    beam: int = Field(ge=1, le=1000)
    n_best: int = Field(ge=1, le=1000)
    options: list[str]

    @model_validator(mode="after")
    def _fits(self) -> Translate:
        if self.n_best > self.beam:
            raise ValueError(f"n_best is {self.n_best}, more than the beam of {self.beam}")
        return self


class BackTranslation(Section):
    """Whether the teacher translates the other way round, and the student learns from its samples."""

    enabled: bool
    tag: str = Field(pattern=r"^[^\s|&\\]*$")
    seed: int = Field(ge=0)


class Filter(Section):
    """The filter of what the teacher wrote."""

    reverse: Folder | None
    drop: float = Field(ge=0, lt=1)


class Alignments(Section):
    """What aligns the words of the student's corpus."""

    model: Annotated[Path, BeforeValidator(_find_aligner), AfterValidator(_check_folder)] | None
    command: str | None
    weight: float = Field(gt=0, le=100)

    @model_validator(mode="after")
    def _one_aligner(self) -> Alignments:
        if self.model is not None and self.command is not None:
            raise ValueError("model and command are both given: leave out one of them")
        if self.command is not None and (missing := [name for name in ALIGNER_FILES if name not in self.command]):
            raise ValueError(f"command lacks {missing[0]}: it must name {', '.join(ALIGNER_FILES)}")
        return self

    @property
    def given(self) -> bool:
        """Whether there is an aligner."""
        return self.model is not None or self.command is not None


class CorpusText(Section):
    """The student's corpus."""

    valid_src: File
    valid_tgt: File
    options: list[str]


class Student(Section):
    """The student."""

    preset: Preset
    set: list[str]


class Finetune(Section):
    """Further updates of the student, with weights that are rounded to 8 bits as in its export."""

    updates: int = Field(ge=0)
    set: list[str]


class Export(Section):
    """The student as it is used."""

    quantization: Quantization
    shortlist: bool
    options: list[str]


class TestSet(Section):
    """A test set."""

    src: File
    ref: File


class Settings(Section):
    """All values of the workflow, paths absolute."""

    out: Annotated[Path, BeforeValidator(_absolute)]
    src_lang: str = Field(min_length=1)
    tgt_lang: str = Field(min_length=1)
    teacher: Teacher
    text: Text
    translate: Translate
    back_translation: BackTranslation
    filter: Filter
    alignments: Alignments
    corpus: CorpusText
    student: Student
    baseline: bool
    finetune: Finetune
    export: Export
    test: dict[Annotated[str, Field(pattern=r"^[\w-]+$")], TestSet] = Field(min_length=1)
    launcher: str = Field(min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> Settings:
        for name in () if "--any-language" in self.corpus.options else ("src_lang", "tgt_lang"):
            if problem := code_problem(getattr(self, name), "--any-language in corpus.options"):
                raise ValueError(f"{name}: {problem}")
        if self.back_translation.enabled and self.text.mono is None:
            raise ValueError("back_translation translates text.mono, which is not given")
        if self.baseline and self.text.src is None:
            raise ValueError(
                "baseline trains on text.src and text.tgt, which are not given: give them, or leave it out"
            )
        return self


def read_settings(config: Mapping[str, Any], files: Sequence[str | Path]) -> Settings:
    """Check the configuration.

    Args:
        config: The values of the user, which go before those of ``config.yaml``.
        files: The files that they come from. Relative paths start at the folder of the first.

    Raises:
        ConfigError: A value is missing, unknown or out of bounds, or values do not go together.
    """
    if not files:
        raise ConfigError("no configuration: name one; `dst distill --print-config` prints all values")
    defaults = yaml.safe_load(Path(__file__).with_name("config.yaml").read_text(encoding="utf-8"))
    try:
        return Settings.model_validate(_merge(defaults, config), context=Path(files[0]).absolute().parent)
    except ValidationError as error:
        fault = error.errors()[0]
    name = ".".join(map(str, fault["loc"])) or "the configuration"
    if fault["type"] == "extra_forbidden":
        raise ConfigError(
            f"{name} is not a value of a configuration: correct it (`dst distill --print-config`), or leave it out"
        )
    if fault["type"] == "missing" or fault["input"] is None:
        raise ConfigError(
            f"{name} is missing: give it in your configuration; `dst distill --print-config` describes it"
        )
    if fault["type"] == "value_error":
        raise ConfigError(f"{name}: {fault['ctx']['error']}")
    raise ConfigError(f"{name} is {shown(fault['input'])}: {fault['msg']}")


def _merge(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values given, and the default of every other one, section by section; null is a section without values."""
    both = {key: _merge(value, given.get(key) or {}) for key, value in defaults.items()
            if isinstance(value, Mapping) and isinstance(given.get(key, {}), Mapping | None)}  # fmt: skip
    return {**defaults, **given, **both}
