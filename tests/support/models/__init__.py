"""Small models and packed batches, and comparison of their results."""
