"""Processes that tests start: forked, launched, as ranks; none is left behind."""
