"""Beam search, and translation of text with a trained model."""

from dstransformer.decoding.beam import Hypothesis, beam_search, length_penalty
from dstransformer.decoding.translator import Translator

__all__ = ["Hypothesis", "Translator", "beam_search", "length_penalty"]
