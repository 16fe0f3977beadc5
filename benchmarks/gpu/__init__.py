"""Training and decoding on one GPU, compared with the limits of the device."""
