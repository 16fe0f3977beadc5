"""Scores of translations: BLEU and chrF with signatures, and the paper's compound-split BLEU."""

from dstransformer.evaluation.bleu import Score, Scores, compound_split_bleu, score

__all__ = ["Score", "Scores", "compound_split_bleu", "score"]
