"""Small training runs, and reading their results."""
