"""The transformer body: tokens in, token vectors out, for dense, SPLADE and cross-encoders.

May import: `encoders.backends`, `encoders.tuning`, `encoders.vectors` and below.
"""
