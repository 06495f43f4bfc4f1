"""Pseudo-relevance feedback: RM3 for terms, Rocchio for vectors.

May import: `retrieval.retrievers` and below.
"""
