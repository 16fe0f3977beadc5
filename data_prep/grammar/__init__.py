"""The embedded corpus: English-German sentence pairs from a synchronous grammar.

One random plan (``plan``) is put into words by an English and a German linearisation, so both sides are grammatical by
construction and each English sentence has exactly one translation. Drawing is seeded and the same on every platform.
"""
