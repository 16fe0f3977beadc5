"""The steps that follow from a configuration: their commands, the records before them, and checks of what it names."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from dstransformer.config import load_config
from dstransformer.data.tokenizer import SRC_TOKENIZER_NAME, TOKENIZER_NAME
from dstransformer.errors import ConfigError, DataError
from dstransformer.extras.distill.settings import TEACHER, Settings
from dstransformer.model import Bundle, open_bundle


@dataclass(frozen=True)
class Plan:
    """The steps of a workflow. A record is that of a step, relative to the folder of the workflow."""

    settings: Settings

    @property
    def reads(self) -> tuple[str, str]:
        """The languages that the teacher translates from and into."""
        languages = (self.settings.src_lang, self.settings.tgt_lang)
        return languages[::-1] if self.settings.back_translation.enabled else languages

    @property
    def parts(self) -> dict[str, Path]:
        """The texts that the teacher translates, by name."""
        text = self.settings.text
        parallel = None if self.settings.back_translation.enabled else text.src
        return {name: path for name, path in (("parallel", parallel), ("mono", text.mono)) if path is not None}

    @property
    def best_of_many(self) -> bool:
        """Whether the best of several translations is taken by its reference."""
        return "parallel" in self.parts and self.settings.translate.n_best > 1

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
        if self.settings.filter.reverse is None:
            return self.translated
        return {part: f"records/filter_{part}.json" for part in self.parts}

    @property
    def pairs(self) -> dict[str, tuple[str, str]]:
        """These pairs: the file of the original text, and of its translation."""
        if self.settings.filter.reverse is None:
            return {part: (str(text), f"made/{part}.translation") for part, text in self.parts.items()}
        return {part: (f"made/{part}.kept", f"made/{part}.kept.translation") for part in self.parts}

    @property
    def teachers(self) -> list[str]:
        """The folders of the teachers' bundles."""
        return [str(bundle_folder(path)) for path in self.settings.teacher.bundles] or ["teacher/bundle"]

    @property
    def models(self) -> dict[str, str]:
        """The bundles that are exported: students and a single teacher, unless it is for back-translation."""
        students = {name: f"{name}/bundle" for name in self.candidates}
        if self.settings.back_translation.enabled or len(self.teachers) > 1:
            return students
        return {"teacher": self.teachers[0], **students}

    @property
    def candidates(self) -> list[str]:
        """The students of which the better one is shipped; the first if they are equal."""
        return ["student", *(["finetuned"] if self.settings.finetune.updates else [])]

    @property
    def ensemble(self) -> str:
        """The teacher's bundle and options that add the others, as words."""
        first, *others = self.teachers
        return shlex.join([first, *(word for other in others for word in ("--ensemble", other))])

    @property
    def translate_command(self) -> str:
        """The command with which the teacher translates, without its files."""
        back = self.settings.back_translation
        search = f"--sample --seed {back.seed}" if back.enabled else f"--beam {self.settings.translate.beam}"
        options = shlex.join(self.settings.translate.options)
        return f"{self.settings.launcher} translate {self.ensemble} {search} {options} --resume"

    @property
    def _tags(self) -> bool:
        return self.settings.back_translation.enabled and bool(self.settings.back_translation.tag)

    @property
    def pairs_after(self) -> list[str]:
        """The records of the steps before the pairs of the corpus are complete."""
        return [*(["records/tag.json"] if self._tags else []), *self.ready.values()]

    @property
    def corpus_after(self) -> list[str]:
        """The records of the steps before the corpus."""
        aligned = ["records/align.json"] if self.settings.alignments.given else []
        return [*self.pairs_after, *aligned, "records/teacher.json"]

    @property
    def pairs_texts(self) -> list[Path]:
        """The files of the user that the pairs of the corpus are made from."""
        if not self.settings.back_translation.enabled:
            return list(self.parts.values())
        return [path for path in (self.settings.text.src, self.settings.text.tgt) if path is not None]

    @property
    def corpus_texts(self) -> list[Path]:
        """These files, and the validation text."""
        return [*self.pairs_texts, self.settings.corpus.valid_src, self.settings.corpus.valid_tgt]

    @property
    def sides(self) -> tuple[list[str], list[str]]:
        """The source and the target files of the corpus."""
        src, tgt = (list(files) for files in zip(*self.pairs.values(), strict=True))
        if self.settings.back_translation.enabled:
            src, tgt = ["made/tagged"] if self._tags else tgt, src
            if self.settings.text.src is not None:
                src, tgt = [str(self.settings.text.src), *src], [str(self.settings.text.tgt), *tgt]
        return src, tgt

    @property
    def align_options(self) -> str:
        """The options of ``align.py``: the pairs, and what aligns them."""
        src, tgt = self.sides
        options = ["--src", *src, "--tgt", *tgt, "--to", "made/alignments"]
        if self.settings.alignments.command is not None:
            return shlex.join([*options, "--command", self.settings.alignments.command])
        model = self.settings.alignments.model
        assert model is not None
        return shlex.join([*options, "--bundle", self.teachers[0] if model == TEACHER else str(bundle_folder(model))])

    @property
    def corpus_command(self) -> str:
        """The command that builds the student's corpus, with the vocabulary of the teacher."""
        aligned = ["--alignments", "made/alignments"] if self.settings.alignments.given else []
        return self._build(*self.sides, "corpus", aligned)

    @property
    def baseline_command(self) -> str:
        """The command that builds the corpus of the baseline: the parallel text as it is."""
        text = self.settings.text
        return self._build([str(text.src)], [str(text.tgt)], "corpus_baseline", [])

    def _build(self, src: list[str], tgt: list[str], out: str, options: list[str]) -> str:
        settings = self.settings
        command = ["dst-prep", "build", "--source", "files", "--src-lang", settings.src_lang]
        command += ["--tgt-lang", settings.tgt_lang, "--src", *src, "--tgt", *tgt, *options]
        command += ["--valid-src", str(settings.corpus.valid_src), "--valid-tgt", str(settings.corpus.valid_tgt)]
        return f"{shlex.join([*command, '--out', out, '--overwrite', *settings.corpus.options])} {self._vocabulary}"

    @property
    def _vocabulary(self) -> str:
        """The options that take the teacher's vocabulary; the shell looks whether it has one for each language."""
        folder = Path(self.teachers[0])
        joint, source = folder / TOKENIZER_NAME, folder / SRC_TOKENIZER_NAME
        src, tgt = (joint, source) if self.settings.back_translation.enabled else (source, joint)
        apart = (
            f"echo --no-joint --src-tokenizer-model {shlex.quote(str(src))} --tokenizer-model {shlex.quote(str(tgt))}"
        )
        return f"$([ -e {shlex.quote(str(source))} ] && {apart} || echo --tokenizer-model {shlex.quote(str(joint))})"

    @property
    def trained(self) -> dict[str, list[str]]:
        """The values of each model that the workflow trains, in place of its preset's."""
        settings, aligns = self.settings, self.settings.alignments.given
        guided = [f"loss.guided_alignment={settings.alignments.weight}"] if aligns else []
        models = {} if settings.teacher.bundles else {"teacher": settings.teacher.set}
        models["student"] = [*guided, *settings.student.set]
        if settings.baseline:
            models["baseline"] = [*settings.student.set, *(["loss.guided_alignment=0"] if aligns else [])]
        if updates := settings.finetune.updates:
            finetune = ["training.int8_weights=true", f"training.max_updates={updates}", *settings.finetune.set]
            models["finetuned"] = [*models["student"], *finetune]
        return models

    def train_command(self, model: str) -> str:
        """The command that trains a model in the folder of its name."""
        section = self.settings.teacher if model == "teacher" else self.settings.student
        corpora = {"teacher": str(self.settings.teacher.corpus), "baseline": "corpus_baseline"}
        begin = ["--init", "student/bundle"] if model == "finetuned" else []
        values = [f"--set={value}" for value in self.trained[model]]
        options = [str(section.preset), *values, "--corpus", corpora.get(model, "corpus"), *begin]
        return f"{self.settings.launcher} train {shlex.join([*options, '--run', model, '--name', model])}"

    @property
    def shortlist(self) -> bool:
        """Whether the exports of students limit translations to likely pieces."""
        return self.settings.export.shortlist or "--shortlist" in self.settings.export.options

    def export_options(self, model: str) -> str:
        """The options of ``dst export ct2`` for a model, as words."""
        export = self.settings.export
        adds = export.shortlist and model != "teacher" and "--shortlist" not in export.options
        limit = ["--shortlist", "corpus"] if adds else []
        return shlex.join(["--quantization", export.quantization, *limit, *export.options])

    def export_after(self, model: str) -> list[str]:
        """The records of the steps before the export of a model."""
        limits = self.settings.export.shortlist and model != "teacher"
        return [f"records/{model}.json", *(["records/corpus.json"] if limits else [])]

    @property
    def systems(self) -> dict[str, tuple[str, str]]:
        """What translates the test sets: the record before it, and its command. The first is the baseline."""
        systems = {}
        if not self.settings.back_translation.enabled:
            systems["teacher"] = ("records/teacher.json", f"{self.settings.launcher} translate {self.ensemble}")
        if self.settings.baseline:
            systems["baseline"] = ("records/baseline.json", "dst translate baseline/bundle")
        systems["student"] = ("records/student.json", "dst translate student/bundle")
        engine = "--engine ct2 --no-shortlist" if self.shortlist else "--engine ct2"
        for model in self.models:
            name = f"{model}-{self.settings.export.quantization}"
            systems[name] = (f"records/export_{model}.json", f"dst translate exported/{model} {engine}")
        if self._differs:
            systems["shipped"] = ("records/ship.json", "dst translate exported/shipped --engine ct2")
        return systems

    @property
    def _differs(self) -> bool:
        """Whether the shipped export may translate differently than the student's."""
        return self.shortlist or len(self.candidates) > 1

    @property
    def speeds(self) -> dict[str, tuple[str, str]]:
        """What the speed is measured of, by model and engine: the record before it, and the model as options."""
        speeds = {}
        bundles = {"teacher": self.ensemble, "baseline": "baseline/bundle", "student": "student/bundle"}
        for model, bundle in bundles.items():
            if model in self.systems:
                speeds[f"{model}.torch"] = (f"records/{model}.json", bundle)
        option = " --no-shortlist" if self.shortlist else ""
        for model in self.models:
            speeds[f"{model}.ct2"] = (f"records/export_{model}.json", f"exported/{model}{option}")
        if self._differs:
            speeds["shipped.ct2"] = ("records/ship.json", "exported/shipped")
        return speeds

    @property
    def ship_after(self) -> list[str]:
        """The records of the steps before the shipped export is chosen."""
        exports = [f"records/export_{model}.json" for model in self.candidates]
        return exports + ([f"records/validate_{model}.json" for model in self.candidates] if exports[1:] else [])

    @property
    def evaluate_command(self) -> str:
        """The command that scores all systems on all test sets, and compares them with the first."""
        command = ["dst", "evaluate", "--significance", "bootstrap", "--json"]
        for name, test in self.settings.test.items():
            files = [f"made/{name}.{system}" for system in self.systems]
            command += ["--src", str(test.src), "--ref", str(test.ref), "--systems", *files]
        return shlex.join(command)

    @property
    def records(self) -> list[str]:
        """The records of all steps."""
        steps = ["teacher", *(["n_best"] if self.best_of_many else [])]
        if self.settings.filter.reverse is not None:
            steps += [f"score_{part}" for part in self.parts]
        steps += [*(["corpus_baseline"] if self.settings.baseline else []), "corpus", *self.trained]
        steps += [f"export_{model}" for model in self.models]
        steps += [f"decode.{test}.{system}" for test in self.settings.test for system in self.systems]
        steps += ["scores", *(f"speed.{name}" for name in self.speeds)]
        others = [*self.translated.values(), *self.corpus_after, *self.ship_after, "records/ship.json"]
        return list(dict.fromkeys([*(f"records/{step}.json" for step in steps), *others]))


def bundle_folder(path: Path) -> Path:
    """The folder of a bundle's files: that of a run is within it."""
    return path / "bundle" if (path / "bundle").is_dir() else path


def check(plan: Plan) -> None:
    """Check that models translate in the right directions, that teachers share a vocabulary, and values of trainings.

    Raises:
        DataError: A bundle is damaged, translates in another direction, has another vocabulary than the first teacher,
            or is to align and was not trained for it.
        ConfigError: A preset or a value of a training is not valid, or it needs alignments that nothing makes.
    """
    guided = _guided(plan)
    settings, (src, tgt) = plan.settings, plan.reads
    teachers = [_opened(path, "teacher.bundles", src, tgt) for path in settings.teacher.bundles]
    for other in teachers[1:]:
        if other.tokenizer.identity != teachers[0].tokenizer.identity:
            raise DataError(
                f"teacher.bundles: {other.path} has another vocabulary than {teachers[0].path}: models decode together "
                "only with one vocabulary; leave one out"
            )
    if settings.teacher.corpus is not None:
        from dstransformer.data import Corpus

        manifest = Corpus.open(settings.teacher.corpus, verify=False).manifest
        what = f"teacher.corpus: {settings.teacher.corpus}"
        _check_direction(what, (manifest.src_lang, manifest.tgt_lang), (src, tgt))
    if settings.filter.reverse is not None:
        _opened(settings.filter.reverse, "filter.reverse", tgt, src)
    aligner = settings.alignments.model
    if aligner == TEACHER and settings.back_translation.enabled:
        raise ConfigError(
            f"alignments.model: the teacher translates from {src} to {tgt}: name a model from {tgt} to {src}"
        )
    if aligner == TEACHER:
        is_guided = teachers[0].is_guided if teachers else guided["teacher"]
    elif aligner is not None:
        is_guided = _opened(aligner, "alignments.model", settings.src_lang, settings.tgt_lang).is_guided
    if aligner is not None and not is_guided:
        raise DataError(
            f"alignments.model: {aligner} was not trained with guided alignment: train it with loss.guided_alignment, "
            "or name another model or an aligner in alignments.command"
        )


def _guided(plan: Plan) -> dict[str, bool]:
    """Whether each training of the plan is guided by alignments; that of a student needs an aligner."""
    found = {}
    for model, values in plan.trained.items():
        section = plan.settings.teacher if model == "teacher" else plan.settings.student
        try:
            weight = load_config(str(section.preset), values).loss.guided_alignment
        except ConfigError as error:
            raise ConfigError(f"training of {model}: {error}") from None
        if weight and model != "teacher" and not plan.settings.alignments.given:
            raise ConfigError(
                f"training of {model}: loss.guided_alignment is {weight}, but nothing aligns its corpus: give "
                "alignments.model or alignments.command, or leave out the weight"
            )
        found[model] = weight > 0
    return found


def _opened(path: Path, role: str, src: str, tgt: str) -> Bundle:
    bundle = open_bundle(path)
    if bundle.form.model or bundle.directions:
        kind = "translates in several directions" if bundle.directions else f"is {bundle.form.model}"
        raise DataError(f"{role}: {path} {kind}: name a model from {src} to {tgt}")
    _check_direction(f"{role}: {path}", (bundle.src_lang, bundle.tgt_lang), (src, tgt))
    return bundle


def _check_direction(what: str, found: tuple[str | None, str | None], wanted: tuple[str, str]) -> None:
    from dstransformer.io.languages import matching_codes

    if any(one is not None and not matching_codes(code, [one]) for one, code in zip(found, wanted, strict=True)):
        raise DataError(f"{what} translates from {found[0]} to {found[1]}: name one from {wanted[0]} to {wanted[1]}")
