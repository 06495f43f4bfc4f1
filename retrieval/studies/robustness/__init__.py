"""What typos and stuffed documents do to a pipeline.

May import: `retrieval.experiments` and below.
"""
