"""No record of an export can hurt its reader; ``model.bin`` is CTranslate2's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faults.fuzzing import Target, fuzz, inputs_for_each
from support.services.serving import save_small_bundle

from dstransformer.exchange.ct2 import write_ct2
from dstransformer.exchange.ct2_engine import open_ct2
from dstransformer.model import open_bundle


def make_export(folder: Path) -> None:
    bundle = open_bundle(save_small_bundle(folder.parent / "exported"))
    write_ct2(bundle, bundle.load_weights(), folder / "model", "float32")


def read_export(folder: Path) -> None:
    open_ct2(folder / "model", threads=1).describe()


@pytest.mark.slow
def test_a_damaged_export_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    target = Target("export", make_export, read_export, ("*/dstransformer.json", "*/tokenizer.model"), hashes=True)
    fuzz(target, tmp_path, inputs_for_each(20))
