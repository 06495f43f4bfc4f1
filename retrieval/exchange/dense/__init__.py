"""Dense vectors in other tools' files: npy, parquet, safetensors, JSONL.

May import: `retrieval.documents` and below.
"""
