"""Sparse vectors in other tools' files: CIFF, JSON impacts, folders of vectors.

May import: `retrieval.documents` and below.
"""
