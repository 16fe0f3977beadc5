"""dstransformer beside other trainers on the same work, in alternation: ``python -m benchmarks.peers``."""
