"""Training files in the formats people have: triples, pairs, CSV, JSONL, parquet.

May import: `retrieval.config` and below.
"""
