"""Training and decoding on one GPU, compared with the limits of the device. ``python -m benchmarks.gpu``."""
