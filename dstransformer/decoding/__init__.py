"""Beam search and sampling, and translation of text with trained models."""

from dstransformer.decoding.beam import Hypothesis, beam_search, length_penalty
from dstransformer.decoding.engine import SearchEngine, TorchEngine
from dstransformer.decoding.sampling import Sampling
from dstransformer.decoding.texts import Output
from dstransformer.decoding.translator import TextDecoder, Translator

__all__ = [
    "Hypothesis",
    "Output",
    "Sampling",
    "SearchEngine",
    "TextDecoder",
    "TorchEngine",
    "Translator",
    "beam_search",
    "length_penalty",
]
