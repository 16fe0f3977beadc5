"""Beam search and sampling, and translation and parsing of text with trained models."""

from dstransformer.decoding.beam import Hypothesis, beam_search, length_penalty
from dstransformer.decoding.engine import SearchEngine, TorchEngine
from dstransformer.decoding.ensemble import Ensemble
from dstransformer.decoding.outputs import Output
from dstransformer.decoding.parser import Parser
from dstransformer.decoding.sampling import Sampling
from dstransformer.decoding.translator import TextDecoder, Translator

__all__ = [
    "Ensemble",
    "Hypothesis",
    "Output",
    "Parser",
    "Sampling",
    "SearchEngine",
    "TextDecoder",
    "TorchEngine",
    "Translator",
    "beam_search",
    "length_penalty",
]
