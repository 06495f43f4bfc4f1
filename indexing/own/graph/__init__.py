"""Vectors in a graph of nearest neighbours, searched greedily by any function that scores them.

May import: `indexing.flat`, `indexing.faiss` and below.
"""
