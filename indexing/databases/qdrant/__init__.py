"""An index in Qdrant, in this process or on a server: dense or sparse vectors, exact or HNSW.

May import: `encoders.foundation`, the rest of `indexing.databases`, and what that may.
"""
