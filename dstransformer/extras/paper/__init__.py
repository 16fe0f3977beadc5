"""The tables and figures of the paper: Tables 1 to 3, and the attention pictures of its appendix.

It goes if nobody reproduces the paper with this program any more.
"""
