"""Training: the loop, the DeepSpeed engine, and the final bundle."""
