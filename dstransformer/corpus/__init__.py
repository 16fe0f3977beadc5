"""The sharded corpus: token ids in memory-mapped Arrow shards, a SentencePiece tokenizer and a manifest. No torch."""

from dstransformer.corpus.directions import Direction
from dstransformer.corpus.manifest import (
    FORMAT_VERSION,
    MAX_WORDS,
    UNALIGNED_VERSION,
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
from dstransformer.corpus.reader import Corpus, Split
from dstransformer.corpus.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer
from dstransformer.corpus.writer import CorpusWriter, SplitWriter

__all__ = [
    "BOS_ID",
    "EOS_ID",
    "FORMAT_VERSION",
    "MAX_WORDS",
    "PAD_ID",
    "UNALIGNED_VERSION",
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
