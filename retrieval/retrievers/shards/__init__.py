"""A retriever in several shards, each a retriever's folder, with the results of the whole.

May import: `retrieval.retrievers.folder`, `retrieval.retrievers.corpus`, `indexing` and below.
"""
