"""Checks of what a configuration names, before the first step runs."""

from __future__ import annotations

from pathlib import Path

from distill.plan import Plan
from distill.settings import TEACHER

from dstransformer.config import load_config
from dstransformer.errors import ConfigError, DataError
from dstransformer.model import Bundle, open_bundle


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
        _check_corpus(settings.teacher.corpus, src, tgt)
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
    if bundle.trees is not None or bundle.directions:
        kind = "is a parser" if bundle.trees is not None else "translates in several directions"
        raise DataError(f"{role}: {path} {kind}: name a model from {src} to {tgt}")
    _check_direction(f"{role}: {path}", (bundle.src_lang, bundle.tgt_lang), (src, tgt))
    return bundle


def _check_corpus(path: Path, src: str, tgt: str) -> None:
    from dstransformer.data import Corpus

    manifest = Corpus.open(path, verify=False).manifest
    _check_direction(f"teacher.corpus: {path}", (manifest.src_lang, manifest.tgt_lang), (src, tgt))


def _check_direction(what: str, found: tuple[str | None, str | None], wanted: tuple[str, str]) -> None:
    from dstransformer.io.languages import matching_codes

    if any(one is not None and not matching_codes(code, [one]) for one, code in zip(found, wanted, strict=True)):
        raise DataError(f"{what} translates from {found[0]} to {found[1]}: name one from {wanted[0]} to {wanted[1]}")
