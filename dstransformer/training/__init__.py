"""Training: the loop, the DeepSpeed engine, checkpoints, and what follows from them."""
