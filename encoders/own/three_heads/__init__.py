"""One transformer, three kinds of vectors of one pass (BGE-M3): dense, of terms, of tokens.

May import: `encoders.transformer` and below.
"""
