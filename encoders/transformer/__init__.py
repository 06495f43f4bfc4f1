"""A transformer's body: tokens in, token vectors out, for dense, SPLADE and cross-encoders alike.

May import: `encoders.backends`, `encoders.tuning`, `encoders.vectors` and below.
"""
