"""One file per system. Those of the peers run in the peer's own environment and import nothing of this project."""
