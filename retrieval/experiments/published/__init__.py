"""Runs whose figures others have published, repeated and compared.

May import: `retrieval.experiments` and below.
"""
