"""Candidates for MaxSim that is then exact: which documents to score, and what recall that leaves.

May import: `indexing.flat` and below, `indexing.tokens.storage`; the index it serves imports it.
"""
