"""The four stages of a build, read, clean, vocab and encode, and what they do to text."""
