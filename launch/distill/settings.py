"""The configuration of the workflow, checked before the first step runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dstransformer.corpus.tokenizer import SRC_TOKENIZER_NAME, TOKENIZER_NAME
from dstransformer.errors import ConfigError, DataError, shown

Quantization = Literal[
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"
]


def _check_file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    return path


def _check_folder(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder")
    return path


File = Annotated[Path, AfterValidator(_check_file)]
Folder = Annotated[Path, AfterValidator(_check_folder)]


class Section(BaseModel):
    """A section: values without a default come from ``config.yaml``."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Teacher(Section):
    """Trained bundles, or what a teacher is trained from."""

    bundles: list[Folder]
    preset: str | None
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


class CorpusText(Section):
    """The student's corpus."""

    valid_src: File
    valid_tgt: File
    options: list[str]


class Student(Section):
    """The student."""

    preset: str
    set: list[str]


class Export(Section):
    """The student as it is used."""

    quantization: Quantization
    options: list[str]


class TestSet(Section):
    """A test set."""

    src: File
    ref: File


class Settings(Section):
    """All values of the workflow, paths absolute."""

    out: Path
    src_lang: str = Field(min_length=1)
    tgt_lang: str = Field(min_length=1)
    teacher: Teacher
    text: Text
    translate: Translate
    back_translation: BackTranslation
    filter: Filter
    corpus: CorpusText
    student: Student
    export: Export
    test: dict[Annotated[str, Field(pattern=r"^[\w-]+$")], TestSet] = Field(min_length=1)
    launcher: str = Field(min_length=1)

    @model_validator(mode="after")
    def _back(self) -> Settings:
        if self.back_translation.enabled and self.text.mono is None:
            raise ValueError("back_translation translates text.mono, which is not given")
        return self

    @property
    def reads(self) -> tuple[str, str]:
        """The languages that the teacher translates from and into."""
        languages = (self.src_lang, self.tgt_lang)
        return languages[::-1] if self.back_translation.enabled else languages

    @property
    def parts(self) -> dict[str, Path]:
        """The texts that the teacher translates, by name."""
        parallel = None if self.back_translation.enabled else self.text.src
        given = {"parallel": parallel, "mono": self.text.mono}
        return {name: path for name, path in given.items() if path is not None}

    @property
    def best_of_many(self) -> bool:
        """Whether the best of several translations is taken by its reference."""
        return "parallel" in self.parts and self.translate.n_best > 1

    @property
    def translated(self) -> dict[str, str]:
        """The record of what the teacher made of each text."""
        return {
            part: f"records/{'choose' if part == 'parallel' and self.best_of_many else 'translate'}_{part}.json"
            for part in self.parts
        }

    @property
    def ready(self) -> dict[str, str]:
        """The record after which the pairs of each text are those to train on."""
        if self.filter.reverse is None:
            return self.translated
        return {part: f"records/filter_{part}.json" for part in self.parts}

    @property
    def pairs(self) -> dict[str, tuple[str, str]]:
        """These pairs: the file of the original text, and of its translation."""
        if self.filter.reverse is None:
            return {part: (str(text), f"made/{part}.translation") for part, text in self.parts.items()}
        return {part: (f"made/{part}.kept", f"made/{part}.kept.translation") for part in self.parts}

    @property
    def teachers(self) -> str:
        """The folders of the teachers' bundles, as words."""
        return words(str(bundle_folder(path)) for path in self.teacher.bundles) or "teacher/bundle"

    @property
    def models(self) -> dict[str, str]:
        """The bundles that are exported and measured; of an ensemble the first."""
        first = str(bundle_folder(self.teacher.bundles[0])) if self.teacher.bundles else "teacher/bundle"
        teacher = {} if self.back_translation.enabled else {"teacher": first}
        return {**teacher, "student": "student/bundle"}

    @property
    def ensemble(self) -> str:
        """The teacher's bundle and options that add the others, as words."""
        first, *others = shlex.split(self.teachers)
        return words([first, *(word for other in others for word in ("--ensemble", other))])

    @property
    def translate_command(self) -> str:
        """The command with which the teacher translates, without its files."""
        back = self.back_translation
        search = f"--sample --seed {back.seed}" if back.enabled else f"--beam {self.translate.beam}"
        options = words(self.translate.options)
        return f"{self.launcher} translate {self.ensemble} {search} {options} --resume --overwrite"

    @property
    def systems(self) -> dict[str, tuple[str, str]]:
        """What translates the test sets: the record before it, and its command. The first is the baseline."""
        found = {
            "student": ("records/student.json", "dst translate student/bundle"),
            f"student-{self.export.quantization}": (
                "records/export_student.json",
                "dst translate exported/student --engine ct2",
            ),
        }
        teacher = ("records/teacher.json", f"{self.launcher} translate {self.ensemble}")
        return found if self.back_translation.enabled else {"teacher": teacher, **found}

    @property
    def speeds(self) -> list[str]:
        """The steps that measure speed."""
        return [f"speed.{model}.{engine}" for model in self.models for engine in ("torch", "ct2")]

    @property
    def _tags(self) -> bool:
        return self.back_translation.enabled and bool(self.back_translation.tag)

    @property
    def corpus_after(self) -> list[str]:
        """The records of the steps before the corpus."""
        return [*(["records/tag.json"] if self._tags else []), *self.ready.values(), "records/teacher.json"]

    @property
    def corpus_texts(self) -> list[Path]:
        """The files of the user that the corpus is made from."""
        own = [self.text.src, self.text.tgt] if self.back_translation.enabled else list(self.parts.values())
        return [*(path for path in own if path is not None), self.corpus.valid_src, self.corpus.valid_tgt]

    @property
    def corpus_command(self) -> str:
        """The command that builds the student's corpus, with the vocabulary of the teacher."""
        sides = list(zip(*self.pairs.values(), strict=True))
        if self.back_translation.enabled:
            ((original,), (translation,)) = sides
            sides = [("made/tagged" if self._tags else translation,), (original,)]
            if self.text.src is not None:
                sides = [(str(self.text.src), *sides[0]), (str(self.text.tgt), *sides[1])]
        src, tgt = sides
        command = ["dst-prep", "build", "--source", "files", "--src-lang", self.src_lang, "--tgt-lang", self.tgt_lang]
        command += ["--src", *src, "--tgt", *tgt, "--valid-src", str(self.corpus.valid_src)]
        command += ["--valid-tgt", str(self.corpus.valid_tgt), "--out", "corpus", "--overwrite", *self.corpus.options]
        return f"{words(command)} {self._vocabulary}"

    @property
    def _vocabulary(self) -> str:
        """The options that take the teacher's vocabulary; the shell looks whether it has one for each language."""
        folder = Path(shlex.split(self.teachers)[0])
        joint, source = folder / TOKENIZER_NAME, folder / SRC_TOKENIZER_NAME
        src, tgt = (joint, source) if self.back_translation.enabled else (source, joint)
        apart = f"echo --no-joint --src-tokenizer-model {words([str(src)])} --tokenizer-model {words([str(tgt)])}"
        return f"$([ -e {words([str(source)])} ] && {apart} || echo --tokenizer-model {words([str(joint)])})"

    @property
    def evaluate_command(self) -> str:
        """The command that scores all systems on all test sets, and compares them with the first."""
        command = ["dst", "evaluate", "--significance", "bootstrap", "--json"]
        for name, test in self.test.items():
            files = [f"made/{name}.{system}" for system in self.systems]
            command += ["--src", str(test.src), "--ref", str(test.ref), "--systems", *files]
        return words(command)


def read_settings(config: Mapping[str, Any], files: Sequence[str | Path]) -> Settings:
    """Check the configuration.

    Args:
        config: The values of the user, which go before those of ``config.yaml``.
        files: The files that they come from. Relative paths start at the folder of the first.

    Raises:
        ConfigError: A value is missing, unknown or out of bounds, or values do not go together.
    """
    if not files:
        raise ConfigError("no configuration: add --configfile mine.yaml; launch/distill/config.yaml has all values")
    defaults = yaml.safe_load(Path(__file__).with_name("config.yaml").read_text(encoding="utf-8"))
    try:
        return Settings.model_validate(_with_paths(_merge(defaults, config), Path(files[0]).absolute().parent))
    except ValidationError as error:
        fault = error.errors()[0]
    name = ".".join(map(str, fault["loc"])) or "the configuration"
    if fault["type"] == "extra_forbidden":
        raise ConfigError(f"{name} is not a value of launch/distill/config.yaml: correct its name, or leave it out")
    if fault["type"] == "missing" or fault["input"] is None:
        raise ConfigError(f"{name} is missing: give it in your configuration; see launch/distill/config.yaml")
    if fault["type"] == "value_error":
        raise ConfigError(f"{name}: {fault['ctx']['error']}")
    raise ConfigError(f"{name} is {shown(fault['input'])}: {fault['msg']}")


def _merge(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values given, and the default of every other one, section by section."""
    both = {key: _merge(value, given[key]) for key, value in defaults.items()
            if isinstance(value, Mapping) and isinstance(given.get(key), Mapping)}  # fmt: skip
    return {**defaults, **given, **both}


#: Where the configuration has paths; ``*`` is every name.
_PATHS = ("out", "teacher.bundles", "teacher.corpus", "text.*", "filter.reverse", "corpus.valid_src",
          "corpus.valid_tgt", "test.*.*")  # fmt: skip


def _with_paths(config: Mapping[str, Any], folder: Path, prefix: str = "") -> dict[str, Any]:
    """The configuration with absolute paths."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found[key] = _with_paths(value, folder, f"{name}.")
        elif any(_matches(name, pattern) for pattern in _PATHS):
            items = [folder / item if isinstance(item, str) else item for item in _listed(value)]
            found[key] = items if isinstance(value, list) else items[0]
        else:
            found[key] = value
    return found


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(w in ("*", part) for part, w in zip(parts, wanted, strict=True))


def check_models(settings: Settings) -> None:
    """Check that the given models translate in the right directions and that teachers share a vocabulary.

    Raises:
        DataError: A bundle is damaged, translates in another direction, or has another vocabulary than the first.
    """
    from dstransformer.corpus import Corpus
    from dstransformer.model import Bundle, open_bundle

    def opened(path: Path, role: str, src: str, tgt: str) -> Bundle:
        bundle = open_bundle(path)
        if bundle.trees is not None or bundle.directions:
            kind = "is a parser" if bundle.trees is not None else "translates in several directions"
            raise DataError(f"{role}: {path} {kind}: name a model from {src} to {tgt}")
        _check_direction(f"{role}: {path}", (bundle.src_lang, bundle.tgt_lang), (src, tgt))
        return bundle

    src, tgt = settings.reads
    teachers = [opened(path, "teacher.bundles", src, tgt) for path in settings.teacher.bundles]
    for other in teachers[1:]:
        if other.tokenizer.identity != teachers[0].tokenizer.identity:
            raise DataError(
                f"teacher.bundles: {other.path} has another vocabulary than {teachers[0].path}: models decode together "
                "only with one vocabulary; leave one out"
            )
    if settings.teacher.corpus is not None:
        manifest = Corpus.open(settings.teacher.corpus, verify=False).manifest
        _check_direction(
            f"teacher.corpus: {settings.teacher.corpus}", (manifest.src_lang, manifest.tgt_lang), (src, tgt)
        )
    if settings.filter.reverse is not None:
        opened(settings.filter.reverse, "filter.reverse", tgt, src)


def _check_direction(what: str, found: tuple[str | None, str | None], wanted: tuple[str, str]) -> None:
    from dstransformer.corpus.languages import matching_codes

    if any(one is not None and not matching_codes(code, [one]) for one, code in zip(found, wanted, strict=True)):
        raise DataError(f"{what} translates from {found[0]} to {found[1]}: name one from {wanted[0]} to {wanted[1]}")


def bundle_folder(path: Path) -> Path:
    """The folder of a bundle's files: that of a run is within it."""
    return path / "bundle" if (path / "bundle").is_dir() else path


def words(options: Iterable[str]) -> str:
    """Options as words of a shell command."""
    return shlex.join(options)
