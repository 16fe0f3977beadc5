"""Does a training again from its record and compares the figures; signs bundles.

It goes if nobody trains from a record again.
"""
