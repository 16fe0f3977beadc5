"""``dst import eole``: a Transformer of eole, the successor of OpenNMT-py, as a bundle.

Reading it needs nothing of eole: its files are safetensors, JSON and SentencePiece models.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dstransformer.config import Config
from dstransformer.errors import DataError, counted, shown
from dstransformer.exchange.eole_config import (
    CONFIG,
    check_architecture,
    check_transforms,
    read_config,
    sentencepiece_models,
)
from dstransformer.exchange.eole_tokenizer import VOCABULARY, Pieces, open_tokenizer, read_pieces
from dstransformer.exchange.eole_weights import Rows, Stored, bundle_weights
from dstransformer.exchange.import_record import Imported, imported_from
from dstransformer.exchange.weights import FULL_ADVICE
from dstransformer.io.files import read_error, replace_folder
from dstransformer.io.json_text import read_record
from dstransformer.io.products import check_bundle_folder
from dstransformer.model import open_bundle, save_bundle
from dstransformer.model.bundle import describe_misfit

WEIGHTS = "model.00.safetensors"

_ADVICE = "if it is damaged, copy the model again"


def import_eole(
    folder: Path,
    out: Path,
    *,
    sentencepiece: Sequence[Path] = (),
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    overwrite: bool = False,
) -> Imported:
    """Write a bundle of a model of eole.

    Args:
        folder: The folder that ``eole train`` writes.
        out: The bundle; it appears once it is complete.
        sentencepiece: The SentencePiece models of source and target; none takes those that the model names.
        src_lang: Code of the source language.
        tgt_lang: Code of the target language.
        overwrite: Whether to replace a bundle.

    Raises:
        DataError: The folder lacks a file or holds another model, or a bundle cannot hold it; or ``out`` is something
            else.
        StorageError: The bundle cannot be written.
    """
    check_bundle_folder(out, "--out", overwrite=overwrite)
    _check_folder(folder)
    content = read_record(folder / CONFIG, dict, advice=_ADVICE)
    check_architecture(content, folder / CONFIG)
    check_transforms(content, folder / CONFIG)
    pieces = read_pieces(folder / VOCABULARY, _ADVICE)
    models = list(sentencepiece) or sentencepiece_models(content, folder)
    tokenizer, rows, absent = open_tokenizer(pieces, models)
    files = sorted(folder.glob("model.*.safetensors"))
    stored = Stored(_load(files), files[0])
    config = read_config(content, folder / CONFIG, attention_bias=stored.has_attention_bias)
    weights = _convert(stored, folder, config, pieces, rows, shares=bool(content["model"].get("share_embeddings")))
    if (misfit := describe_misfit(config.model, tokenizer, weights)) is not None:
        raise DataError(f"{files[0]} does not fit {CONFIG}: {misfit}")
    record = imported_from("eole", [folder / CONFIG, *files, folder / VOCABULARY, *models], (src_lang, tgt_lang))

    def write(new: Path) -> None:
        save_bundle(new, weights, config, tokenizer, record)

    replace_folder(out, write, overwrite=overwrite, full=FULL_ADVICE)
    return Imported(open_bundle(out), absent)


def _check_folder(folder: Path) -> None:
    """Refuse a folder that lacks a file."""
    if folder.suffix in (".pt", ".bin"):
        raise DataError(f"{folder} is a pickle, which may execute anything when it is read: eole writes {WEIGHTS}")
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: name one with {CONFIG}, {WEIGHTS} and {VOCABULARY}")
    for name in (CONFIG, WEIGHTS, VOCABULARY):
        if (folder / name).is_file():
            continue
        pickled = sorted(path.name for kind in ("*.pt", "*.bin") for path in folder.glob(kind))
        if name == WEIGHTS and pickled:
            raise DataError(
                f"{folder} has no {WEIGHTS}; {pickled[0]} is a pickle, which may execute anything when it is read"
            )
        raise DataError(f"{folder} has no {name}: it is not the folder of a model of eole")


def _convert(
    stored: Stored, folder: Path, config: Config, pieces: Pieces, rows: tuple[Rows, Rows], *, shares: bool
) -> dict[str, Tensor]:
    """The weights of the bundle; ``shares`` says whether source and target have one embedding.

    Raises:
        DataError: The weights do not fit the configuration or the vocabulary.
    """
    if shares and pieces.src != pieces.tgt:
        raise DataError(f"{folder / CONFIG}: share_embeddings is true, and {VOCABULARY} has two vocabularies")
    names = ["src_emb.embeddings.weight", *([] if shares else ["tgt_emb.embeddings.weight"])]
    try:
        for name, vocabulary in zip(names, (pieces.src, pieces.tgt), strict=False):
            if (found := len(stored.read(name))) != (wanted := len(vocabulary)):
                raise DataError(
                    f"{stored.path}: {name} has {counted(found, 'row')}, and {VOCABULARY} {wanted:,} pieces"
                )
        weights = bundle_weights(stored, config.model, rows, shares_embeddings=shares)
        stored.check_rest(config.model.d_model, config.model.positions)
    except (IndexError, RuntimeError, TypeError) as error:
        raise DataError(f"{stored.path} does not fit {CONFIG}: {shown(error, quote=False)}") from None
    return weights


def _load(files: Sequence[Path]) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for path in files:
        try:
            weights |= load_file(path)
        except OSError as error:
            raise read_error(path, error) from None
        except SafetensorError as error:
            raise DataError(f"{path} is not a safetensors file ({shown(error, quote=False)}); {_ADVICE}") from None
    return weights
