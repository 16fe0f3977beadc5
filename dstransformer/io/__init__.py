"""Files: atomic writes, locks, text, compression, JSON within bounds, pictures, and what a folder holds."""
