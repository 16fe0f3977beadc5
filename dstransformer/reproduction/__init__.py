"""Does a training again from its record and compares the figures."""
