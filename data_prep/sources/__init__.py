"""Sources of sentence pairs: toy text, files, the hub's data sets and treebanks."""
