"""Multi-process runs: launcher variables, the process group, and what watches over a run."""
