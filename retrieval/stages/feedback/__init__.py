"""Pseudo-relevance feedback: RM3 for terms, Rocchio for vectors.

May import: `retrieval.stages.rerankers`, `retrieval.retrievers` and below.
"""
