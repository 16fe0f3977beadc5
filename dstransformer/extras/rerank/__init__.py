"""Reranking of n-best lists: by a reverse model, by references, by minimum Bayes risk.

It goes if a library does it as exactly on lists of this size.
"""
