"""COMET (Rei et al., 2020), if the package ``unbabel-comet`` is installed. Nothing is downloaded."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from dstransformer.errors import DataError, UserError, shown
from dstransformer.evaluation.result import Score
from dstransformer.files import file_sha256

#: Sentences that the model takes at once.
BATCH_SIZE = 16


def find_checkpoint(path: str) -> Path:
    """The checkpoint of a COMET model.

    Args:
        path: The file, or the folder of a downloaded model, which has it in ``checkpoints/model.ckpt``.

    Raises:
        UserError: The package is not installed.
        DataError: There is no such file.
    """
    if find_spec("comet") is None:
        raise UserError(
            "--comet needs the package unbabel-comet: install it with `pip install unbabel-comet`, and give the path "
            "of a downloaded model"
        )
    given = Path(path)
    found = given / "checkpoints" / "model.ckpt" if given.is_dir() else given
    if not found.is_file():
        raise DataError(
            f"--comet {path}: {found} is not a file: name the checkpoint of a downloaded model (model.ckpt)"
        )
    return found


class Comet:
    """A COMET model.

    Args:
        path: See :func:`find_checkpoint`.

    Raises:
        UserError: The package is not installed.
        DataError: The file is not a COMET model.
    """

    def __init__(self, path: str) -> None:
        checkpoint = find_checkpoint(path)
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
        comet = importlib.import_module("comet")
        try:
            self._model = comet.load_from_checkpoint(str(checkpoint), local_files_only=True)
        except Exception as error:
            raise DataError(f"--comet {path} cannot be loaded: {shown(error, quote=False, limit=200)}") from error
        sha256 = file_sha256(checkpoint)[:16]
        self._signature = f"comet:{checkpoint.parent.parent.name or checkpoint.name}|sha256:{sha256}"
        self._signature += f"|version:{version('unbabel-comet')}|scale:100"

    def score(self, sources: Sequence[str], translations: Sequence[str], references: Sequence[str]) -> Score:
        """The mean score of the sentences, times 100."""
        samples = [
            {"src": source, "mt": translation, "ref": reference}
            for source, translation, reference in zip(sources, translations, references, strict=True)
        ]
        gpus = int(torch.cuda.is_available())
        output = self._model.predict(samples, batch_size=BATCH_SIZE, gpus=gpus, progress_bar=False)
        return Score("comet", 100.0 * float(output.system_score), self._signature)
