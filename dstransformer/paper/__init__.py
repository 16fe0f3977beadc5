"""The tables and figures of the paper, computed here. Each module draws on the rooms below and owns no mechanism."""
