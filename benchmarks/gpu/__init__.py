"""Training and decoding on one GPU, against the limits of the card. ``python -m benchmarks.gpu``."""
