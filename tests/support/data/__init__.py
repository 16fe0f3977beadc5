"""Small texts, corpora and treebanks."""
