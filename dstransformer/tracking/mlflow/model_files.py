"""The files around a bundle that make it an MLflow model: description, environment, code, example. Imports mlflow."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import yaml
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, Schema

BUNDLE_FOLDER = "bundle"
LOADER_MODULE = "dstransformer.export.pyfunc"

#: What the loader and the model import. This package itself is not on an index: its code travels with the model.
REQUIREMENTS = (
    "mlflow",
    "torch",
    "numpy",
    "pandas",
    "sentencepiece",
    "safetensors",
    "pydantic",
    "PyYAML",
    "pyarrow",
    "psutil",
    "filelock",
)
PARSER_REQUIREMENTS = ("nltk",)

_EXAMPLE = "A sentence."


def pinned_requirements(*, trees: bool) -> list[str]:
    """The packages that a model needs, with the versions installed here, as lines of ``requirements.txt``.

    The local part of a version (``2.13.0+cpu``) is left out: it names a build that the package index does not have.
    """
    names = (*REQUIREMENTS, *(PARSER_REQUIREMENTS if trees else ()))
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]


def write_model_files(
    folder: Path, *, run_id: str, model_id: str, example: str | None, trees: bool, metadata: Mapping[str, Any]
) -> None:
    """Write everything of an MLflow model but the bundle, which belongs beside it as ``bundle/``.

    Args:
        folder: An empty folder.
        run_id: The run that trained the model.
        model_id: The logged model.
        example: A sentence to show as input; None takes one that says nothing.
        trees: Whether the model is a parser.
        metadata: Facts to store in the description.
    """
    text = Schema([ColSpec("string")])
    model = Model(run_id=run_id, model_id=model_id, model_uuid=model_id)
    code = folder.with_name(f"{folder.name}-code") / "dstransformer"
    shutil.copytree(Path(__file__).parents[2], code, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    mlflow.pyfunc.save_model(
        str(folder),
        loader_module=LOADER_MODULE,
        code_paths=[str(code)],
        mlflow_model=model,
        signature=ModelSignature(inputs=text, outputs=text),
        input_example=[example or _EXAMPLE],
        pip_requirements=pinned_requirements(trees=trees),
        metadata=dict(metadata),
    )
    shutil.rmtree(code.parent)
    description = folder / "MLmodel"
    content = yaml.safe_load(description.read_text(encoding="utf-8"))
    content["flavors"]["python_function"]["data"] = BUNDLE_FOLDER
    description.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
