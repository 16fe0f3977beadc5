"""Turns parallel text into cleaned, SentencePiece-encoded, sharded corpora for dstransformer."""
