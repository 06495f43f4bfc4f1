"""Folders of files that other search engines and databases load: mapping, documents, queries.

May import: `retrieval.retrievers` and below, `retrieval.exchange.sparse`.
"""
