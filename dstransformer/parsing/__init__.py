"""Constituency parsing (section 6.3): trees, and labelled bracketing scores."""
