"""MaxSim over stored token vectors: approximate with proven bounds, then exact.

May import: `indexing.tokens.storage`, `indexing.storage` and below.
"""
