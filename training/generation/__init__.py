"""Makes texts to train on: queries for documents, inverse cloze pairs, spans of documents.

May import: `training.batches` and below.
"""
