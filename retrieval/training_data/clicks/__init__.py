"""Click logs: read, explained by click models, made labels and weights of.

May import: `retrieval.training_data.files` and what that may.
"""
