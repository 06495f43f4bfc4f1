"""Which documents are worth indexing: scores of passage quality and their files.

May import: `retrieval.retrievers` and below.
"""
