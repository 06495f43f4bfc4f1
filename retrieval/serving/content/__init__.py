"""What is served: the pipelines, models and documents of a folder, in one state at a time.

May import: `retrieval.experiments` and below.
"""
