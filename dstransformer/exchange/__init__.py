"""Models of other tools, in and out."""
