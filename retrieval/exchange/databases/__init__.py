"""Folders of files that other search engines and databases load: mapping, documents, queries.

May import: `retrieval.retrievers` and below, and the formats of `retrieval.exchange` itself.
"""
