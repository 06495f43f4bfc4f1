"""Makes texts to train on: queries for documents, and inverse cloze pairs.

May import: `training.batches` and below.
"""
