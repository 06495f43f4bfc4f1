"""What lies in an experiment's output: its retrievers, their changes, results, saved pipelines.

May import: `retrieval.config` and below.
"""
