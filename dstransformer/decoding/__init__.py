"""Beam search, and translation and parsing of text with a trained model."""

from dstransformer.decoding.beam import Hypothesis, beam_search, length_penalty
from dstransformer.decoding.parser import Parser
from dstransformer.decoding.translator import Translator

__all__ = ["Hypothesis", "Parser", "Translator", "beam_search", "length_penalty"]
