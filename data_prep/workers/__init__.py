"""Where the work of a stage is done: processes of this machine, or a cluster."""
