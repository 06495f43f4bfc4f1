"""Language models that rerank: pointwise, pairwise, listwise; local or over HTTP.

May import: `retrieval.retrievers` and below.
"""
