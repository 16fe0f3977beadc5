"""From a corpus to packed batches.

The corpus: token ids in memory-mapped Arrow shards, a SentencePiece tokenizer and a manifest. Its names stand here and
need no torch. The road from there: the plan of an epoch (``plan.py``), the packed batch (``packing.py``), the loader.
"""

from typing import TYPE_CHECKING

from dstransformer.data.directions import Direction
from dstransformer.data.manifest import (
    MAX_WORDS,
    CleaningReport,
    InputFile,
    LengthStats,
    Manifest,
    Option,
    Overlap,
    PartInfo,
    Shard,
    SourceInfo,
    SplitInfo,
    TokenizerInfo,
    WordCounts,
)
from dstransformer.data.reader import Corpus, Split
from dstransformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer
from dstransformer.io.lazy import loads_later

if TYPE_CHECKING:
    from dstransformer.data.writer import CorpusWriter, SplitWriter
else:
    __getattr__ = loads_later(__name__, "writer")

__all__ = [
    "BOS_ID",
    "EOS_ID",
    "MAX_WORDS",
    "PAD_ID",
    "UNK_ID",
    "CleaningReport",
    "Corpus",
    "CorpusWriter",
    "Direction",
    "InputFile",
    "LengthStats",
    "Manifest",
    "Option",
    "Overlap",
    "PartInfo",
    "Shard",
    "SourceInfo",
    "Split",
    "SplitInfo",
    "SplitWriter",
    "Tokenizer",
    "TokenizerInfo",
    "WordCounts",
]
