"""The work of requests: what is queued, bounded in tokens, runs in batches, and becomes an answer.

May import: `retrieval.serving.content`, `retrieval.serving.shapes`, `retrieval.serving.faults`.
"""
