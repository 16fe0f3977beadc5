"""``dst export argos``: a package for Argos Translate and LibreTranslate.

A zip archive of one folder: the model of CTranslate2, the SentencePiece model of both sides, ``metadata.json``, and
perhaps MiniSBD's model of the source language, by which Argos Translate finds the sentences of a text.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from pathlib import Path

from dstransformer.errors import DataError, UserError, shown
from dstransformer.exchange.ct2 import check_ct2, write_ct2
from dstransformer.exchange.formats import FULL_ADVICE
from dstransformer.io.files import replacing, storage_errors
from dstransformer.io.languages import english_name, parse_code
from dstransformer.io.requirements import check_installed
from dstransformer.io.text import already_exists, check_output_file
from dstransformer.model import Bundle, open_bundle

#: Argos Translate's codes, where they are no ISO 639: by language, and script or region.
_CODES = {("zh", "Hant"): "zt", ("pt", "BR"): "pb", ("fil", ""): "tl"}

_README = """\
# {from_name} to {to_name}

A Transformer (Vaswani et al., 2017) for Argos Translate and LibreTranslate.
It was trained with dstransformer{version}{sources}.

    python -c "from argostranslate import package; package.install_from_path('NAME.argosmodel')"
    argos-translate --from {from_code} --to {to_code} "A sentence."
"""


def export_argos(
    source: str | Path | Bundle,
    out: Path,
    *,
    quantization: str = "int8",
    sentences: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Write a bundle as a package of Argos Translate.

    Args:
        source: See :func:`dstransformer.model.open_bundle`.
        out: The file; it appears once it is complete.
        quantization: The type of the stored weights, by CTranslate2's name.
        sentences: MiniSBD's model of the source language, an ONNX file; without it Argos Translate downloads one.
        overwrite: Whether to replace an earlier package.

    Raises:
        UserError: CTranslate2 is not installed, or ``out`` is something else.
        DataError: The source is not a bundle, is a parser, or has what a package cannot hold: vocabularies of their own
            for each language, several directions, or no languages.
        StorageError: The file cannot be written.
    """
    check_installed("ctranslate2")
    target = check_output_file(out)
    if target.exists() and not (overwrite and _is_package(target)):
        if overwrite:
            raise UserError(f"{out} is not a package of Argos Translate, so it is not replaced: give another name")
        raise already_exists(out)
    if sentences is not None and not (sentences.suffix == ".onnx" and sentences.is_file()):
        raise DataError(f"--sentences {sentences} is not a file NAME.onnx: name MiniSBD's model of the source language")
    bundle = open_bundle(source)
    _check(bundle)
    metadata = _metadata(bundle)
    folder = f"translate-{metadata['from_code']}_{metadata['to_code']}"
    record = bundle.provenance
    version = f" {record['dstransformer']}" if record.get("dstransformer") else ""
    sources = f" on {', '.join(map(str, record['sources']))}" if record.get("sources") else ""
    readme = _README.format(**metadata, version=version, sources=sources)
    with (
        storage_errors(str(out), full=FULL_ADVICE),
        tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary,
    ):
        package = Path(temporary) / folder
        write_ct2(bundle, package / "model", quantization)
        bundle.tokenizer.save(package / "sentencepiece.model")
        if sentences is not None:
            (package / "minisbd").mkdir()
            shutil.copyfile(sentences, package / "minisbd" / sentences.name)
        text = json.dumps(metadata, indent=2, ensure_ascii=False)
        (package / "metadata.json").write_text(f"{text}\n", encoding="utf-8")
        (package / "README.md").write_text(readme, encoding="utf-8")
        archive = shutil.make_archive(str(Path(temporary) / "package"), "zip", temporary, folder)
        with replacing(target) as complete:
            Path(archive).rename(complete)


def _is_package(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/metadata.json") for name in archive.namelist())


def _check(bundle: Bundle) -> None:
    check_ct2(bundle)
    lacks = None
    if bundle.directions:
        lacks = "has several directions, and a package of Argos Translate has one"
    elif not bundle.tokenizer.is_joint:
        lacks = "has a vocabulary for each language, and a package of Argos Translate has one SentencePiece model"
    elif not bundle.src_lang or not bundle.tgt_lang:
        lacks = "does not say its languages, which a package of Argos Translate is named by"
    if lacks is not None:
        raise DataError(f"{shown(str(bundle.path), quote=False)} {lacks}; use `dst export ct2`")


def _metadata(bundle: Bundle) -> dict[str, object]:
    fields: dict[str, object] = {"package_version": "1.0", "argos_version": "1.11", "type": "translate"}
    for side, code in (("from", bundle.src_lang), ("to", bundle.tgt_lang)):
        assert code is not None
        fields |= {f"{side}_code": argos_code(code), f"{side}_name": english_name(code)}
    return fields


def argos_code(code: str) -> str:
    """Argos Translate's code of a language: of two letters if there is one, and others for some scripts and regions."""
    parsed = parse_code(code)
    name = "nb" if parsed.language == "no" else parsed.language
    return _CODES.get((name, parsed.script or ""), _CODES.get((name, parsed.region or ""), name))
