"""Queries searched by other texts: by rules or a language model, with drafts, with filters.

May import: `retrieval.retrievers` and below.
"""
