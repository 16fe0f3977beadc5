"""What is on disk: the work folder with its files of pairs and chunks, and the output folder."""
