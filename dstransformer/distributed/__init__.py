"""Multi-process runs: launcher variables, the process group, preemption, and the handshake between nodes."""
