"""Beam search and sampling, and translation of text with trained models.

Its names load torch at first use; what a request may be (``formats.py``) and what commands check need none.
"""

from typing import TYPE_CHECKING

from dstransformer.io.lazy import loads_later

if TYPE_CHECKING:
    from dstransformer.decoding.beam import beam_search, length_penalty
    from dstransformer.decoding.engine import TorchEngine
    from dstransformer.decoding.formats import Sampling
    from dstransformer.decoding.texts import Output
    from dstransformer.decoding.translator import TextDecoder, Translator
else:
    __getattr__ = loads_later(__name__, "beam", "engine", "formats", "texts", "translator")

__all__ = [
    "Output",
    "Sampling",
    "TextDecoder",
    "TorchEngine",
    "Translator",
    "beam_search",
    "length_penalty",
]
