"""Hypencoder: a query becomes a small network that scores documents' vectors.

May import: what `encoders.dense` may.
"""
