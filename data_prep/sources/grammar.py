"""The embedded English-German grammar as a source."""

import hashlib
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import pyarrow as pa

from data_prep.options import ToyOptions
from data_prep.pairs import SCHEMA
from data_prep.sources import Source
from dstransformer.corpus import SourceInfo
from dstransformer.errors import UserError


def open_toy(options: ToyOptions) -> Source:
    """English to German or German to English; UserError for other languages."""
    if {options.src_lang, options.tgt_lang} != {"en", "de"}:
        raise UserError(
            f"the toy source has English and German, not {options.src_lang}-{options.tgt_lang}: "
            "use --src-lang en --tgt-lang de, or the other way round"
        )

    @cache
    def generate() -> dict[str, list[tuple[str, str]]]:
        from data_prep.sources.toy import toy_splits

        return toy_splits(options.pairs, options.seed, options.valid_size, options.test_size)

    def stream(split: str) -> Iterator[pa.Table]:
        english, german = zip(*generate()[split], strict=True)
        src, tgt = (english, german) if options.src_lang == "en" else (german, english)
        yield pa.table([pa.array(src, pa.string()), pa.array(tgt, pa.string())], schema=SCHEMA)

    return Source(
        info=SourceInfo(name="toy", revision=_grammar_revision(), inputs=()),
        splits={name: partial(stream, name) for name in ("train", "validation", "test")},
    )


def _grammar_revision() -> str:
    """Hash of the grammar's program, so that a corpus of an older grammar is not taken for one of this."""
    files = sorted((Path(__file__).parent / "toy").glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
