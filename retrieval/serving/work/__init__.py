"""Queues the work of requests and runs it in batches, bounded in tokens.

May import: `retrieval.serving.faults`.
"""
