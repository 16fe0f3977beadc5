"""The tables and figures of the paper, computed here. They only use the packages below."""
