"""An index in PostgreSQL with pgvector: dense, half-precision and sparse vectors, exact or HNSW.

May import: `encoders.foundation`, the rest of `indexing.databases`, and what that may.
"""
