"""Constituency parsing (section 6.3): trees, a parser whose every output is one, and the scores of its brackets.

It goes if another project parses with models that are trained here, under the same constraint.
"""
