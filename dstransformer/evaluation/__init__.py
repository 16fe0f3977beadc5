"""Scores translations: BLEU, chrF, the paper's compound-split BLEU; held-out splits and test sets.

Only light modules are imported here; ``validation`` imports PyTorch.
"""

from dstransformer.evaluation.result import Evaluation, Sample, Score

__all__ = ["Evaluation", "Sample", "Score"]
