"""What lies on disk: the work folder, its files of pairs and chunks, and the output folder."""
