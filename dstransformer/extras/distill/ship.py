"""Chooses the student that is used: the one whose export translates the validation text best."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from dstransformer.io.command import run_guarded
from dstransformer.io.files import replace_file, replace_folder

FORMAT_VERSION = 1


def main() -> int:
    """Link the files of the better export as ``exported/shipped``, and write ``shipped.json``."""
    parser = argparse.ArgumentParser(description="Choose among exports by the BLEU of the validation text.")
    parser.add_argument("models", nargs="+", help="students; the first is taken if the best are equal")
    parser.add_argument("--reference", type=Path, required=True, help="translation of the validation text")
    parser.add_argument("--language", required=True, help="code of its language")
    options = parser.parse_args()
    bleu = score(options.models, options.reference, options.language) if len(options.models) > 1 else {}
    best = choose(options.models, bleu)
    content = {"format_version": FORMAT_VERSION, "model": best, "validation_bleu": bleu, "why": why(best, bleu)}
    source = Path("exported", best)

    def write(folder: Path) -> None:
        shutil.copytree(source, folder, copy_function=link_or_copy)

    replace_folder(Path("exported", "shipped"), write)
    replace_file(Path("shipped.json"), json.dumps(content, indent=2) + "\n")
    print(f"exported/shipped is exported/{best}: {content['why']}")
    return 0


def link_or_copy(source: str, target: str) -> None:
    """Link a file, or copy it where there are no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def score(models: list[str], reference: Path, language: str) -> dict[str, float]:
    """The BLEU of each model's translation of the validation text."""
    from dstransformer.evaluation.bleu import bleu_tokenizer
    from dstransformer.evaluation.bleu import score as score_text
    from dstransformer.io.text import iter_lines

    references, tokenize = list(iter_lines(reference)), bleu_tokenizer(language)
    found = {}
    for model in models:
        scores = score_text(list(iter_lines(f"made/validate_{model}")), references, tokenize)
        found[model] = next(one.value for one in scores if one.name == "bleu")
    return found


def choose(models: list[str], bleu: Mapping[str, float]) -> str:
    """The model with the highest BLEU, of equal ones the first."""
    return max(models, key=lambda model: bleu.get(model, 0.0))


def why(best: str, bleu: Mapping[str, float]) -> str:
    """The reason of a choice."""
    if not bleu:
        return "it is the only one"
    values = ", ".join(f"{model} {value:.2f}" for model, value in bleu.items())
    tied = sum(value == bleu[best] for value in bleu.values()) > 1
    return f"BLEU of the validation text: {values}" + ("; of equal ones the first" if tied else "")


if __name__ == "__main__":
    sys.exit(run_guarded("distill", main))
