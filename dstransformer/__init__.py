"""dstransformer: the Transformer of "Attention Is All You Need" (Vaswani et al., 2017), trained with DeepSpeed."""

__version__ = "0.1.0"
