"""Inline tags of HTML and XML: they are taken out of sentences, and put into the translations by word alignments.

It goes if a library places tags as well, by alignments that it is given.
"""
