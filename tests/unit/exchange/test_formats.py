"""Exports and imports say what they hold, and refuse everything else by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from support.models.random_bundle import random_bundle

from dstransformer.cli.export import Export
from dstransformer.config import ModelConfig
from dstransformer.errors import DataError
from dstransformer.exchange.argos import export_argos
from dstransformer.exchange.ct2 import HOLDS, export_ct2
from dstransformer.exchange.ct2_engine import open_ct2
from dstransformer.exchange.hf_export import export_hf
from dstransformer.exchange.marian_npz import export_marian
from dstransformer.exchange.marian_weights import marian_holds
from dstransformer.exchange.weights import affine
from dstransformer.model import Bundle, open_bundle

EXPORTS: dict[str, Callable[[Bundle, Path], object]] = {
    "hf": export_hf,
    "ct2": export_ct2,
    "marian": export_marian,
    "argos": export_argos,
    "engine": lambda bundle, _: open_ct2(bundle),
}

#: The closed lists of an architecture.
LISTS = [name for name, field in ModelConfig.model_fields.items() if get_origin(field.annotation) is Literal]


@pytest.fixture(params=EXPORTS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bundle(form: str, tmp_path: Path) -> Bundle:
    """A bundle that the form holds."""
    changes = {"positions": "timing", "start": "zeros"} if form == "marian" else {}
    return open_bundle(random_bundle(tmp_path / "bundle", **changes))


def refuse(form: str, bundle: Bundle, model: ModelConfig, match: str) -> None:
    out = bundle.path.parent / "out"
    with pytest.raises(DataError, match=match):
        EXPORTS[form](replace(bundle, model=model), out)
    assert not out.exists()


def test_all_forms_are_tested() -> None:
    assert {command.__name__.lower() for command in Export.commands} == EXPORTS.keys() - {"engine"}
    assert {"activation", "norm", "positions", "start", "tie_embeddings"} <= set(LISTS)


def test_a_value_that_nobody_knows_is_refused(form: str, bundle: Bundle) -> None:
    for name in LISTS:
        refuse(form, bundle, bundle.model.model_copy(update={name: "unheard"}), rf"model\.{name} is 'unheard'")


def test_a_setting_that_nobody_knows_is_refused(form: str, bundle: Bundle) -> None:
    class Grown(ModelConfig):
        gated: bool = False

    refuse(form, bundle, Grown(**bundle.model.model_dump()), r"model\.gated is False")


@pytest.mark.parametrize(("form", "changes"), [
    ("hf", {"norm": "pre"}), ("hf", {"positions": "learned"}), ("hf", {"positions": "timing"}), ("hf", {"d_k": 16}),
    ("hf", {"d_v": 9}), ("hf", {"num_heads": 5}),
    ("marian", {"positions": "sinusoidal"}), ("marian", {"start": "embedding"}), ("marian", {"norm": "pre"}),
    ("marian", {"d_k": 16}),
])  # fmt: skip
def test_what_marian_cannot_hold_is_refused(form: str, bundle: Bundle, changes: dict[str, Any]) -> None:
    ((name, value),) = changes.items()
    refuse(form, bundle, bundle.model.model_copy(update=changes), rf"model\.{name} is {value!r}.*`dst export ct2`")


def test_each_table_speaks_of_each_setting_and_of_no_other(bundle: Bundle) -> None:
    for holds in (HOLDS, marian_holds(bundle.model, "timing", ("zeros",))):
        assert holds.keys() == ModelConfig.model_fields.keys()
        for name in LISTS:
            assert set(holds[name]) <= set(get_args(ModelConfig.model_fields[name].annotation))  # type: ignore[arg-type]


def test_a_bias_that_is_missing_is_not_zeros() -> None:
    weights = {"norm.weight": torch.ones(2)}
    with pytest.raises(KeyError, match=r"norm\.bias"):
        affine(weights, "norm")
    assert affine(weights, "norm", has_bias=False).bias.tolist() == [0, 0]
