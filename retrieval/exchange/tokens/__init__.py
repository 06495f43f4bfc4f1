"""Files of token vectors, several for each text, with their ids: npz and parquet.

May import: `retrieval.exchange.dense` and below.
"""
